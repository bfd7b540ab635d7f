"""A tiny checkpoint per family: what its renderer reads, and what vLLM's renderer reads besides.

No weights. Configurations are complete enough for vLLM to name the architecture, so the same
directories serve both renderers (`python -m interop`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.render import checkpoints
from tests.render.checkpoints import write

RESCALE = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
TEXT = {
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 64, "vocab_size": 512, "max_position_embeddings": 4096,
}  # fmt: skip
"""A language model's sizes."""

VIDEO = {
    "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "fps": 2, "min_frames": 4,
    "max_frames": 16, "do_sample_frames": True, **RESCALE,
    "size": {"shortest_edge": 4096, "longest_edge": 262144},
}  # fmt: skip


def made(
    path: Path,
    special: list[str],
    config: dict[str, Any],
    *,
    image: str = "",
    video: str = "",
    plain: tuple[str, ...] = (),
    **files: dict[str, Any],
) -> Path:
    """A checkpoint whose config names tokens as `@token`.

    Args:
        special: its special tokens; `<s>` is always one.
        image, video: what its chat template writes for them.
        plain: added tokens that are not special.
        files: names of JSON files without their suffix, and what they hold.
    """
    path.mkdir(parents=True, exist_ok=True)
    ids = checkpoints.byte_level(path, ["<s>", *special], list(plain))
    found = {
        key: ids[value[1:]] if isinstance(value, str) and value.startswith("@") else value
        for key, value in config.items()
    }
    write(path, "config.json", {"vision_config": {}, "text_config": {}, **found})
    for name, content in files.items():
        own = {"tokenizer_class": "PreTrainedTokenizerFast"} if name == "tokenizer_config" else {}
        write(path, f"{name}.json", own | content)
    template = checkpoints.template(start="<s>", end="", image=image or special[0], video=video)
    (path / "chat_template.jinja").write_text(template)
    return path


def text(path: Path) -> Path:
    """Qwen3, text alone; its template knows only strings."""
    checkpoints.text_only(path)
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **TEXT}
    write(path, "config.json", config)
    return path


def llama(path: Path) -> Path:
    """Llama with a tokenizer of word starts and bytes, and a begin-of-sequence token."""
    path.mkdir(parents=True, exist_ok=True)
    checkpoints.sentencepiece_like(path, ["<s>", "</s>"], [])
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TEXT}
    write(path, "config.json", config)
    write(path, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
    })  # fmt: skip
    write(path, "generation_config.json", {
        "temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05,
        "max_new_tokens": 77, "do_sample": True, "eos_token_id": [257],
    })  # fmt: skip
    (path / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'user' and loop.index0 % 2 == 1 and messages[0].role == 'user' %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
        "{% elif m.role == 'system' %}<<SYS>>{{ m.content }}<</SYS>>\n"
        "{% else %}{{ ' ' + (m.content or '') + ' ' + eos_token }}{% endif %}{% endfor %}"
    )
    return path


def qwen2_vl(path: Path) -> Path:
    return _qwen(path, "qwen2_vl", "Qwen2VL", 14)


def qwen2_5_vl(path: Path) -> Path:
    return _qwen(path, "qwen2_5_vl", "Qwen2_5_VL", 14)


def qwen3_vl(path: Path) -> Path:
    return _qwen(path, "qwen3_vl", "Qwen3VL", 16)


def qwen3_vl_moe(path: Path) -> Path:
    return _qwen(path, "qwen3_vl_moe", "Qwen3VLMoe", 16)


def qwen3_5(path: Path) -> Path:
    return _qwen(path, "qwen3_5", "Qwen3_5", 16)


def _qwen(path: Path, model_type: str, name: str, patch: int) -> Path:
    third = model_type.startswith("qwen3")
    checkpoints.qwen_vl(
        path, model_type, patch,
        architectures=[f"{name}ForConditionalGeneration"],
        text_config={**TEXT, "model_type": "qwen3_5_text"} if model_type == "qwen3_5" else TEXT,
        vision_config={"depth": 1, "patch_size": patch, "spatial_merge_size": 2},
    )  # fmt: skip
    kind = "Qwen3VLVideoProcessor" if third else "Qwen2VLVideoProcessor"
    write(path, "video_preprocessor_config.json", {
        **VIDEO, "patch_size": patch, "video_processor_type": kind,
    })  # fmt: skip
    processor = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}.get(model_type, "Qwen3VL")
    write(path, "processor_config.json", {"processor_class": f"{processor}Processor"})
    return path


def llava(path: Path) -> Path:
    return made(
        path, ["<image>"],
        {
            "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
            "image_token_index": "@<image>", "dtype": "float16",
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": {
                "model_type": "clip_vision_model", "image_size": 28, "patch_size": 14,
                "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            },
            "vision_feature_select_strategy": "default",
        },
        preprocessor_config={
            "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28},
            "crop_size": {"height": 28, "width": 28}, **RESCALE,
        },
        processor_config={
            "processor_class": "LlavaProcessor", "patch_size": 14, "image_token": "<image>",
            "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
        },
    )  # fmt: skip


_PIXTRAL_TOKENS = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
_PIXTRAL = {
    "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 64},
    "patch_size": {"height": 16, "width": 16}, **RESCALE,
}  # fmt: skip
_PIXTRAL_VISION = {
    "model_type": "pixtral", "image_size": 64, "patch_size": 16, "hidden_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip


def pixtral(path: Path) -> Path:
    return made(
        path, _PIXTRAL_TOKENS,
        {
            "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
            "image_token_index": "@[IMG]", "dtype": "bfloat16",
            "text_config": {"model_type": "mistral", **TEXT}, "vision_config": _PIXTRAL_VISION,
            "vision_feature_select_strategy": "full", "vision_feature_layer": -1,
        },
        preprocessor_config=_PIXTRAL,
        processor_config={
            "processor_class": "PixtralProcessor", "patch_size": 16, "spatial_merge_size": 1,
        },
    )  # fmt: skip


def mistral3(path: Path) -> Path:
    return made(
        path, _PIXTRAL_TOKENS,
        {
            "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
            "image_token_index": "@[IMG]", "spatial_merge_size": 2,
            "text_config": {"model_type": "mistral", **TEXT}, "vision_config": _PIXTRAL_VISION,
        },
        preprocessor_config={**_PIXTRAL, "patch_size": {"height": 32, "width": 32}},
        processor_config={
            "processor_class": "PixtralProcessor", "patch_size": 16, "spatial_merge_size": 2,
        },
    )  # fmt: skip


def llava_onevision(path: Path) -> Path:
    return made(
        path, ["<image>", "<video>"],
        {
            "architectures": ["LlavaOnevisionForConditionalGeneration"],
            "model_type": "llava_onevision", "image_token_index": "@<image>",
            "video_token_index": "@<video>", "dtype": "bfloat16",
            "text_config": {"model_type": "qwen2", **TEXT},
            "vision_config": {
                "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14,
                "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            },
            "image_grid_pinpoints": [[28, 56], [56, 56]],
            "vision_feature_select_strategy": "full",
        },
        preprocessor_config={
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": {"height": 28, "width": 28}, "image_grid_pinpoints": [[28, 56], [56, 56]],
            **RESCALE,
        },
        video_preprocessor_config={"video_processor_type": "LlavaOnevisionVideoProcessor"},
        processor_config={
            "processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 4,
            "vision_feature_select_strategy": "full", "image_token": "<image>",
            "video_token": "<video>",
        },
    )  # fmt: skip


def gemma3(path: Path) -> Path:
    return made(
        path, ["<start_of_image>", "<end_of_image>", "<image_soft_token>"],
        {
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "image_token_index": "@<image_soft_token>", "boi_token_index": "@<start_of_image>",
            "eoi_token_index": "@<end_of_image>", "dtype": "bfloat16", "mm_tokens_per_image": 4,
            "text_config": {"model_type": "gemma3_text", **TEXT},
            "vision_config": {
                "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14,
                "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            },
        },
        plain=("\n", "\n\n", "\n\n\n", "\n\n\n\n"),
        tokenizer_config={
            "extra_special_tokens": {
                "image_token": "<image_soft_token>", "boi_token": "<start_of_image>",
                "eoi_token": "<end_of_image>",
            }
        },
        preprocessor_config={
            "image_processor_type": "Gemma3ImageProcessor", "size": {"height": 28, "width": 28},
            **RESCALE,
        },
        processor_config={"processor_class": "Gemma3Processor", "image_seq_length": 4},
    )  # fmt: skip


def internvl(path: Path) -> Path:
    return made(
        path, ["<img>", "</img>", "<IMG_CONTEXT>", "<video>"],
        {
            "architectures": ["InternVLForConditionalGeneration"], "model_type": "internvl",
            "image_token_id": "@<IMG_CONTEXT>", "dtype": "bfloat16", "image_seq_length": 4,
            "text_config": {"model_type": "qwen2", **TEXT},
            "vision_config": {
                "model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [7, 7],
                "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            },
        },
        image="<IMG_CONTEXT>",
        tokenizer_config={
            "extra_special_tokens": {
                "start_image_token": "<img>", "end_image_token": "</img>",
                "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>",
            }
        },
        preprocessor_config={
            "image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 28, "width": 28},
            "crop_to_patches": True, "min_patches": 1, "max_patches": 4, **RESCALE,
        },
        video_preprocessor_config={"video_processor_type": "InternVLVideoProcessor"},
        processor_config={"processor_class": "InternVLProcessor", "image_seq_length": 4},
    )  # fmt: skip


def idefics3(path: Path) -> Path:
    return _idefics(path, "idefics3", "Idefics3")


def smolvlm(path: Path) -> Path:
    return _idefics(path, "smolvlm", "SmolVLM")


def _idefics(path: Path, model_type: str, name: str) -> Path:
    cells = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    special = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
    return made(
        path, [*special, *cells],
        {
            "architectures": [f"{name}ForConditionalGeneration"], "model_type": model_type,
            "image_token_id": "@<image>", "dtype": "bfloat16", "scale_factor": 2,
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": {
                "image_size": 28, "patch_size": 7, "hidden_size": 32, "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
        },
        preprocessor_config={
            "image_processor_type": f"{name}ImageProcessor", "size": {"longest_edge": 56},
            "max_image_size": {"longest_edge": 28}, "do_image_splitting": True, **RESCALE,
        },
        video_preprocessor_config={
            "video_processor_type": "SmolVLMVideoProcessor", "fps": 1, "max_frames": 4,
            "num_frames": 4, "size": {"longest_edge": 56},
        },
        processor_config={"processor_class": f"{name}Processor", "image_seq_len": 4},
    )  # fmt: skip


MAKERS: dict[str, Callable[[Path], Path]] = {
    "qwen3_vl": qwen3_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "text": text,
    "llama": llama,
    "qwen2_vl": qwen2_vl,
    "qwen3_vl_moe": qwen3_vl_moe,
    "qwen3_5": qwen3_5,
    "llava": llava,
    "gemma3": gemma3,
    "internvl": internvl,
    "mistral3": mistral3,
    "pixtral": pixtral,
    "llava_onevision": llava_onevision,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
}
"""Family -> its maker, most used first."""
