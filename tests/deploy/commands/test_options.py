"""How options meet a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.commands.options import merged, read
from deploy.config import ConfigError
from render.config import RenderConfig


def test_an_option_overrides_the_file_which_overrides_the_default(tmp_path: Path) -> None:
    file = tmp_path / "render.yaml"
    file.write_text("max_model_len: 7\nprocesses: 2\nec: {lease_s: 3}\n", encoding="utf-8")
    config = merged(
        file, {"model": "m", "processes": 5, "host": None, "ec.capacity_bytes": 9}, RenderConfig
    )
    assert (config.model, config.processes, config.max_model_len) == ("m", 5, 7)
    assert (config.ec.lease_s, config.ec.capacity_bytes) == (3.0, 9)
    assert config.host == "127.0.0.1"


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "render.yaml"
    file.write_text("media: {max_pixels: 1}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="media: there is no key `max_pixels`"):
        merged(file, {"model": "m"}, RenderConfig)


def test_a_section_that_is_no_section_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "render.yaml"
    file.write_text("ec: 5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="ec: must be a mapping"):
        merged(file, {"model": "m", "ec.capacity_bytes": 1}, RenderConfig)


@pytest.mark.parametrize(("text", "message"), [("[1]", "keys and values"), ("a: [", "not YAML")])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read(file)


def test_no_file_and_an_empty_one_set_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("", encoding="utf-8")
    assert read(None) == read(file) == {}
