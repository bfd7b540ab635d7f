"""Tiny checkpoints without weights: what rendering reads of a model, made in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

_CORPUS = [
    "Describe this image. What colour is the circle? How many shapes are there?",
    "a red circle and a blue square on white, the quick brown fox jumps over the lazy dog",
    "user assistant system tool Paris weather answer question",
]

QWEN_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
QWEN_PLAIN_TOKENS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]

_TEMPLATE = """\
{%- for m in messages %}
{{- 'START' + m.role + '\\n' }}
{%- if m.content is string %}{{- m.content }}
{%- else %}
{%- for part in m.content %}
{%- if part.type == 'image' %}{{- 'IMAGE' }}
{%- elif part.type == 'video' %}{{- 'VIDEO' }}
{%- elif 'text' in part %}{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + (call.function.arguments | tojson) + '</tool_call>' }}
{%- endfor %}
{{- 'END\\n' }}
{%- endfor %}
{%- if tools %}{{- 'tools: ' + (tools | tojson) + '\\n' }}{%- endif %}
{%- if add_generation_prompt %}{{- 'STARTassistant\\n' }}{%- endif %}"""


def template(*, start: str, end: str, image: str, video: str) -> str:
    """A chat template: what a message begins and ends with, and what stands for its media."""
    words = {"START": start, "END": end, "IMAGE": image, "VIDEO": video}
    text = _TEMPLATE
    for name, word in words.items():
        text = text.replace(name, word)
    return text


QWEN_TEMPLATE = (
    template(
        start="<|im_start|>",
        end="<|im_end|>",
        image="<|vision_start|><|image_pad|><|vision_end|>",
        video="<|vision_start|><|video_pad|><|vision_end|>",
    )
    + """
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n' }}
{%- endif %}"""
)

PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""A template that knows only string content."""


def byte_level(path: Path, special: list[str], plain: list[str]) -> dict[str, int]:
    """Write a byte-level BPE tokenizer; returns the ids of its added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return _finish(tokenizer, path, special, plain)


def sentencepiece_like(path: Path, special: list[str], plain: list[str]) -> dict[str, int]:
    """Write a BPE tokenizer with word-start marks and byte fallback, as Llama's; returns ids."""
    from tokenizers import normalizers

    bytes_ = [f"<0x{n:02X}>" for n in range(256)]
    letters = [chr(n) for n in range(0x20, 0x7F)]
    vocab = {token: i for i, token in enumerate(["<unk>", *bytes_, "▁", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _finish(tokenizer, path, special, plain)


def qwen3_vl(path: Path, **changes: Any) -> Path:
    """A Qwen3-VL checkpoint's small files; `changes` go into config.json."""
    return qwen_vl(path, "qwen3_vl", 16, **changes)


def qwen_vl(path: Path, model_type: str, patch_size: int, **changes: Any) -> Path:
    """The small files of a Qwen vision-language checkpoint."""
    path.mkdir(parents=True, exist_ok=True)
    ids = byte_level(path, QWEN_TOKENS, QWEN_PLAIN_TOKENS)
    write(
        path,
        "config.json",
        {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": model_type,
            "image_token_id": ids["<|image_pad|>"],
            "video_token_id": ids["<|video_pad|>"],
            "vision_start_token_id": ids["<|vision_start|>"],
            "vision_end_token_id": ids["<|vision_end|>"],
            "text_config": {"max_position_embeddings": 2048},
            **changes,
        },
    )
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch_size,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"shortest_edge": 4096, "longest_edge": 65536},
    }
    write(path, "preprocessor_config.json", processor)
    write(path, "generation_config.json", {"eos_token_id": [ids["<|im_end|>"]], "top_k": 20})
    (path / "chat_template.jinja").write_text(QWEN_TEMPLATE)
    return path


AUDIO_TEMPLATE = """\
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.content is string %}{{- m.content }}
{%- else %}
{%- for part in m.content %}
{%- if part.type == 'audio' %}{{- '<|audio_bos|><|AUDIO|><|audio_eos|>' }}
{%- elif 'text' in part %}{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def qwen2_audio(path: Path) -> Path:
    """The small files of a Qwen2-Audio checkpoint that hears two seconds."""
    path.mkdir(parents=True, exist_ok=True)
    special = [
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_bos|>", "<|AUDIO|>",
        "<|audio_eos|>",
    ]  # fmt: skip
    ids = byte_level(path, special, [])
    write(
        path,
        "config.json",
        {
            "model_type": "qwen2_audio",
            "audio_token_index": ids["<|AUDIO|>"],
            "audio_config": {},
            "dtype": "bfloat16",
            "text_config": {"max_position_embeddings": 2048},
        },
    )
    extractor = {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16, "n_fft": 400,
        "hop_length": 160, "chunk_length": 2, "n_samples": 32000, "nb_max_frames": 200,
        "sampling_rate": 16000, "padding_value": 0.0, "return_attention_mask": True,
        "processor_class": "Qwen2AudioProcessor",
    }  # fmt: skip
    write(path, "preprocessor_config.json", extractor)
    (path / "chat_template.jinja").write_text(AUDIO_TEMPLATE)
    return path


def text_only(path: Path, model_type: str = "qwen3") -> Path:
    """A text model's small files, with a template that knows only strings."""
    path.mkdir(parents=True, exist_ok=True)
    byte_level(path, ["<|endoftext|>"], [])
    write(path, "config.json", {"model_type": model_type, "max_position_embeddings": 512})
    (path / "chat_template.jinja").write_text(PLAIN_TEMPLATE)
    return path


def write(path: Path, name: str, value: dict[str, Any]) -> None:
    """Write a JSON file of a checkpoint."""
    (path / name).write_text(json.dumps(value))


def _finish(
    tokenizer: Tokenizer, path: Path, special: list[str], plain: list[str]
) -> dict[str, int]:
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])
    tokenizer.save(str(path / "tokenizer.json"))
    write(
        path,
        "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[0]},
    )
    return {token: tokenizer.token_to_id(token) for token in [*special, *plain]}
