"""The demo model: what it is made of, how it is written to disk, and how well it answers.

A Qwen3-VL of about 1.4 M parameters, made of transformers' own classes, so every part of serving a
large one (dynamic resolution, deepstack features, three-axis rotary positions) takes the same way.
Shape, image sizes and chat template are read from `deploy/demo_model/`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from examples.drawings import (
    KINDS,
    MULTI_IMAGE_KINDS,
    PROMPTS,
    REPLIES,
    Example,
    examples,
    user_message,
)

CHECKPOINT: Final = Path(__file__).parents[1] / "deploy" / "demo_model"
CHAT_TEMPLATE: Final = CHECKPOINT / "chat_template.jinja"
VOCABULARY: Final = 512
MAX_POSITIONS: Final = 4096
SPECIAL_TOKENS: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PLAIN_TOKENS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>")
SYSTEM_PROMPTS: Final = (
    "You are a helpful assistant.",
    "You describe drawings.",
    "Answer briefly.",
    "You are a helpful assistant that looks at images.",
)
WORD: Final = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
HELD_OUT_SEED: Final = 10_000_000
"""Evaluation draws from seeds at and above this one, training from those below."""


Messages = list[dict[str, Any]]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of `VOCABULARY` ids that can write any text."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(pattern=Regex(WORD), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS) - len(PLAIN_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in PLAIN_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE.read_text(),
    )


def build_processor() -> Qwen3VLProcessor:
    """A new vocabulary, with the image sizes and chat template of `CHECKPOINT`.

    Drawings keep their resolution, rounded to whole image tokens of 32x32 px.
    """
    tokenizer = build_tokenizer()
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor.from_pretrained(CHECKPOINT),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor.from_pretrained(CHECKPOINT),
        chat_template=tokenizer.chat_template,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLForConditionalGeneration:
    """New weights in the shape that `CHECKPOINT` configures, for the ids of `tokenizer`."""
    config = Qwen3VLConfig.from_pretrained(CHECKPOINT)
    ids = tokenizer.convert_tokens_to_ids
    config.image_token_id, config.video_token_id = ids(["<|image_pad|>", "<|video_pad|>"])
    config.vision_start_token_id = ids("<|vision_start|>")
    config.vision_end_token_id = ids("<|vision_end|>")
    text = config.text_config
    text.vocab_size, text.max_position_embeddings = VOCABULARY, MAX_POSITIONS
    text.eos_token_id, text.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    text.bos_token_id = tokenizer.pad_token_id
    model = Qwen3VLForConditionalGeneration(config)
    stops = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=stops, pad_token_id=tokenizer.pad_token_id
    )
    return model


def save(model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor, output: Path) -> None:
    """Write weights, configuration, tokenizer and the processors' files.

    The files are those of a published Qwen3-VL: one per processor, and a tokenizer class that
    older releases of transformers know too.
    """
    output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(output)
    (output / "model.safetensors").chmod(0o644)
    processor.save_pretrained(output)
    (output / "processor_config.json").unlink()
    processor.image_processor.save_pretrained(output)
    processor.video_processor.save_pretrained(output)
    _edit(output / "tokenizer_config.json", backend=None, tokenizer_class="PreTrainedTokenizerFast")
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        _edit(output / name, processor_class="Qwen3VLProcessor")


@torch.inference_mode()
def answers(
    model: Qwen3VLForConditionalGeneration,
    processor: Qwen3VLProcessor,
    questions: Sequence[Example],
    *,
    text_first: bool = False,
    system: str | None = None,
) -> list[str]:
    """The model's greedy answer to each example, asked as one padded batch."""
    chats: list[Messages] = []
    for example in questions:
        chat = [user_message(example.prompt, example.images, text_first=text_first)]
        chats.append(([{"role": "system", "content": system}] if system else []) + chat)
    texts = processor.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    images = [list(example.images) for example in questions]
    inputs = processor(
        text=texts,
        images=images if any(images) else None,
        padding=True,
        padding_side="left",
        return_tensors="pt",
    )
    output = model.generate(**inputs, max_new_tokens=200, do_sample=False)
    length = inputs["input_ids"].shape[1]
    return list(processor.batch_decode(output[:, length:], skip_special_tokens=True))


@torch.inference_mode()
def evaluate(
    model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor, per_kind: int
) -> dict[str, float]:
    """Print and return the share of exact answers per kind, on drawings never trained on."""
    training = model.training
    model.eval()
    accuracy = {}
    cases = [
        (kind, images)
        for kind in KINDS
        for images in ((2, 3, 4) if kind in MULTI_IMAGE_KINDS else (None,))
    ]
    for number, (kind, images) in enumerate(cases):
        rng = np.random.default_rng(HELD_OUT_SEED + number)
        source = examples(rng, kind, images=images)
        right = total = 0
        for index, start in enumerate(range(0, per_kind, 50)):
            chunk = list(itertools.islice(source, min(50, per_kind - start)))
            system = SYSTEM_PROMPTS[0] if index % 2 else None
            given = answers(model, processor, chunk, text_first=index % 4 > 1, system=system)
            wrong = [(e, a) for e, a in zip(chunk, given, strict=True) if a != e.answer]
            right, total = right + len(chunk) - len(wrong), total + len(chunk)
            if start == 0:
                for example, answer in wrong[:2]:
                    print(f"  {example.prompt} {example.answer!r}, not {answer!r}")
        name = kind if images is None else f"{kind}, {images} images"
        accuracy[name] = right / total
        print(f"{name:<24} {right}/{total} {accuracy[name]:.2%}", flush=True)
    model.train(training)
    return accuracy


def _texts() -> Iterator[str]:
    """Texts to learn the vocabulary from, in the proportions they are used in."""
    rng = np.random.default_rng(0)
    for kind in PROMPTS:
        for example in itertools.islice(examples(rng, kind), 400):
            yield from (example.prompt, example.answer)
    yield from [text for pair in REPLIES.items() for text in pair] * 30
    yield from ["system", "user", "assistant", *SYSTEM_PROMPTS] * 100


def _edit(path: Path, **changes: str | None) -> None:
    """Set keys of a JSON file, or remove those that are `None`."""
    content = json.loads(path.read_text()) | changes
    content = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(content, indent=2) + "\n")
