"""From what a user writes as MODEL to a directory with the model's files."""

from __future__ import annotations

from pathlib import Path

from deploy.config import DEMO_MODEL, ConfigError

DEMO_DIRECTORY = Path(__file__).parent / "demo_model"

_CONFIGURATION = ("*.json", "*.jinja", "*.txt", "*.model", "tokenizer*")
_WEIGHTS = ("*.safetensors",)


def resolve(model: str, revision: str = "", *, weights: bool = True) -> Path:
    """The directory of a model; a Hugging Face name is downloaded unless it is cached.

    Args:
        model: `demo`, a directory, or a name such as `Qwen/Qwen3-VL-2B-Instruct`.
        revision: branch, tag or commit of a name.
        weights: False leaves the weights out, for stages that never load them.

    Raises:
        ConfigError: there is no such model, or it cannot be fetched.
    """
    path = DEMO_DIRECTORY if model == DEMO_MODEL else Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"{model}: the directory has no config.json", "model")
        return path.resolve()
    if model.startswith(("/", "./", "../", "~")) or model.count("/") != 1:
        raise ConfigError(
            f"{model}: no such directory, and not a Hugging Face name (owner/name)", "model"
        )
    return _download(model, revision, weights=weights)


def _download(model: str, revision: str, *, weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    patterns = [*_CONFIGURATION, *(_WEIGHTS if weights else ())]
    try:
        found = snapshot_download(model, revision=revision or None, allow_patterns=patterns)
    except HFValidationError as error:
        raise ConfigError(f"{model}: {str(error).splitlines()[0]}", "model") from None
    except LocalEntryNotFoundError:
        raise ConfigError(
            f"{model}: not a directory, not downloaded before, and the hub cannot be reached",
            "model",
        ) from None
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{model}: cannot be downloaded: {reason}", "model") from None
    return Path(found)
