"""From MODEL to a directory, or one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.config import ConfigError
from deploy.model_source import DEMO_DIRECTORY, resolve


def test_demo_is_the_bundled_model() -> None:
    assert resolve("demo") == DEMO_DIRECTORY
    assert (resolve("demo") / "tokenizer.json").is_file()


def test_a_directory_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert resolve(str(tmp_path)) == tmp_path


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("model", ["/no/such/model", "./no", "no-such-model", "a/b/c"])
def test_a_path_that_is_not_there_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        resolve(model)


def test_a_name_that_cannot_be_downloaded_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        resolve("nobody/no-such-model", weights=False)
    assert refused.value.message.startswith("nobody/no-such-model: ")
    assert "\n" not in refused.value.message
