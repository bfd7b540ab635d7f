"""The files of a checkpoint that rendering reads: configurations, tokenizer, chat template."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from protocol.errors import InvalidRequest
from render.families.base import Checkpoint

_HUB_PATTERNS = ["*.json", "*.jinja", "*.model", "*.txt", "chat_templates/*"]
_FINGERPRINTED = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)


def resolve(model: str) -> Path:
    """The directory of a model: the path itself, or a snapshot of its small files from the hub.

    Raises:
        InvalidRequest: neither exists.
    """
    path = Path(model)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise InvalidRequest(f"model {model!r} was not found: {error}", "model") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} where the file is not there.

    Raises:
        InvalidRequest: it is malformed.
    """
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{path.name} is malformed: {error}", "model") from None


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of tokenizer.json.

    Raises:
        InvalidRequest: the file is missing or malformed.
    """
    file = path / "tokenizer.json"
    if not file.is_file():
        raise InvalidRequest(f"{path} has no tokenizer.json", "model")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the binding raises plain Exception
        raise InvalidRequest(f"tokenizer.json is malformed: {error}", "model") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def open_checkpoint(path: Path, tokenizer: Tokenizer | None = None) -> Checkpoint:
    """What a family may look at.

    Raises:
        InvalidRequest: config.json or the tokenizer is missing or malformed.
    """
    config = read_json(path / "config.json")
    if not config:
        raise InvalidRequest(f"{path} has no config.json", "model")
    tokens = load_tokenizer(path) if tokenizer is None else tokenizer

    def token_id(text: str) -> int:
        found = tokens.token_to_id(text)
        if found is None:
            raise KeyError(text)
        return found

    def token_text(token: int) -> str:
        found = tokens.id_to_token(token)
        if found is None:
            raise KeyError(token)
        return found

    return Checkpoint(str(path), config, token_id, token_text)


def template_source(path: Path) -> str | None:
    """Text of the default chat template, None where the checkpoint has none."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    for name in ("tokenizer_config.json", "chat_template.json", "processor_config.json"):
        template = read_json(path / name).get("chat_template")
        if isinstance(template, list):  # several by name
            named = {one.get("name"): one.get("template") for one in template}
            template = named.get("default")
        if isinstance(template, str):
            return template
    return None


def context_length(config: dict[str, Any]) -> int:
    """Tokens of context by config.json; 0 where it does not say."""
    for part in (config.get("text_config"), config):
        length = (part or {}).get("max_position_embeddings")
        if isinstance(length, int):
            return length
    return 0


def fingerprint(path: Path) -> str:
    """16 hex digits of the content that processed pixels depend on."""
    digest = hashlib.sha256()
    for name in _FINGERPRINTED:
        file = path / name
        digest.update(name.encode() + b"\0")
        digest.update(file.read_bytes() if file.is_file() else b"")
    return digest.hexdigest()[:16]
