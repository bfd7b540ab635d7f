"""The families under comparison: their checkpoints and how their servers are told to parse."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from interop.cases import SERVED, Family
from tests.render.family_checkpoints import MAKERS

MAX_MODEL_LEN = 4096
_VIDEOS = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5"})
_TEXT = frozenset({"text", "llama"})

NAMES = tuple(MAKERS)


class Setup(NamedTuple):
    """A family ready to be served.

    Attributes:
        model: its checkpoint.
        family: what requests must know of it.
        reference_options: for the reference's command line.
        config: for ours.
    """

    model: Path
    family: Family
    reference_options: tuple[str, ...]
    config: dict[str, Any]


def setup(name: str, folder: Path) -> Setup:
    """Make a family's checkpoint."""
    model = MAKERS[name](folder / name)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    special = [
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    ]
    modalities: set[str] = set() if name in _TEXT else {"image"}
    if name in _VIDEOS:
        modalities.add("video")
    family = Family(name, frozenset(modalities), tuple(special), tokenizer.get_vocab_size())
    options = [
        "--served-model-name", SERVED, "--trust-request-chat-template", "--trust-request-mm-kwargs",
    ]  # fmt: skip
    config: dict[str, Any] = {
        "served_model_name": SERVED,
        "processes": 1,  # more would only take longer to start
        "trust_request_chat_template": True,
        "trust_request_mm_kwargs": True,
    }
    if name != "llama":
        options += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        config |= {"tool_parser": "hermes"}
    if name.startswith("qwen3"):
        options += ["--reasoning-parser", "qwen3"]
        config |= {"reasoning_parser": "qwen3"}
    return Setup(model, family, tuple(options), config)
