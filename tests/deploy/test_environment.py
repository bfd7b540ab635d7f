"""Secrets and the scale-out switch come from the environment; the configuration's own win."""

from __future__ import annotations

import pytest

from deploy.config import ClusterConfig
from deploy.environment import is_true, with_secrets


def test_secrets_are_taken_from_the_environment() -> None:
    config = with_secrets(
        ClusterConfig(), {"TRIPTYCH_API_KEY": "k", "TRIPTYCH_CLUSTER_TOKEN": "t", "OTHER": "x"}
    )
    assert config.api_keys == ("k",)
    assert config.cluster_token == "t"


def test_our_variable_comes_before_the_one_of_vllm() -> None:
    both = {"TRIPTYCH_API_KEY": "ours", "VLLM_API_KEY": "theirs"}
    assert with_secrets(ClusterConfig(), both).api_keys == ("ours",)
    assert with_secrets(ClusterConfig(), {"VLLM_API_KEY": "theirs"}).api_keys == ("theirs",)


def test_what_the_configuration_says_stays() -> None:
    config = ClusterConfig(api_keys=("file",), cluster_token="file")
    assert with_secrets(config, {"TRIPTYCH_API_KEY": "k", "TRIPTYCH_CLUSTER_TOKEN": "t"}) == config


@pytest.mark.parametrize(
    "name", ["TRIPTYCH_ENABLE_SCALE_OUT_ENDPOINTS", "VLLM_ENABLE_SCALE_OUT_ENDPOINTS"]
)
def test_scale_out_is_switched_on_by_either_variable(name: str) -> None:
    assert with_secrets(ClusterConfig(), {name: "1"}).enable_scale_out
    assert not with_secrets(ClusterConfig(), {name: "0"}).enable_scale_out


@pytest.mark.parametrize(
    ("value", "meaning"), [("1", True), ("True", True), ("on", True), ("0", False), ("", False)]
)
def test_what_counts_as_true(value: str, meaning: bool) -> None:
    assert is_true(value) is meaning
