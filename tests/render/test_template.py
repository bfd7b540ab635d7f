"""Chat templates, rendered as transformers renders them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from render.template import ChatTemplate
from tests.render import checkpoints
from tests.render.checkpoints import write

HELPERS = """\
{{- bos_token }}{% for m in messages %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
    {%- generation %}{{ m.role | upper }}: {{ m.content | trim }}{% endgeneration %}
    {{ m | tojson }} {{ {'b': '<é>', 'a': 1} | tojson(indent=2, sort_keys=true) }}
{% endfor %}
{%- set ns = namespace(found=false) %}{% set ns.found = true %}{{ ns.found }}
{%- if add_generation_prompt %}{{ eos_token }}assistant{% endif %}"""

CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": " hi "}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}]},
    {"messages": [{"role": "user", "content": "x"}] * 5, "add_generation_prompt": True},
    {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b  "}],
        "continue_final_message": True,
    },
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    checkpoints.qwen3_vl(tmp_path)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    write(tmp_path, "tokenizer_config.json", {**config, "bos_token": {"content": "<|endoftext|>"}})
    return tmp_path


@pytest.mark.parametrize("source", [HELPERS, checkpoints.PLAIN_TEMPLATE, checkpoints.QWEN_TEMPLATE])
def test_it_is_what_transformers_makes_of_it(path: Path, source: str) -> None:
    from transformers import AutoTokenizer

    write(
        path,
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
        },
    )
    theirs, ours = AutoTokenizer.from_pretrained(path), ChatTemplate(path, source)
    # That template writes each message twice, which a mark at its end does not survive.
    for chat in CHATS[:3] if source is HELPERS else CHATS:
        options = {"add_generation_prompt": False, **chat}
        messages = options.pop("messages")
        expected = theirs.apply_chat_template(
            messages, chat_template=source, tokenize=False, **options
        )
        assert ours.render(messages, **options) == expected


def test_the_template_is_found_where_checkpoints_have_it(tmp_path: Path) -> None:
    checkpoints.text_only(tmp_path)
    assert ChatTemplate(tmp_path).source == checkpoints.PLAIN_TEMPLATE
    (tmp_path / "chat_template.jinja").unlink()
    assert ChatTemplate(tmp_path).source is None
    write(tmp_path, "chat_template.json", {"chat_template": "third"})
    assert ChatTemplate(tmp_path).source == "third"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "second"}]
    write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert ChatTemplate(tmp_path).source == "second"
    assert ChatTemplate(tmp_path, "mine").source == "mine"


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (checkpoints.QWEN_TEMPLATE, "openai"),
        (checkpoints.PLAIN_TEMPLATE, "string"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
         "openai"),
    ],
)  # fmt: skip
def test_the_form_of_content_is_found_out(path: Path, source: str, form: str) -> None:
    assert ChatTemplate(path, source).content_format() == form


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system message') }}",
        "{{ messages[5].content }}{{ undefined.attribute }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% if %}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_fails_is_a_clients_fault(path: Path, source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(path, source).render([{"role": "user", "content": "x"}])
    assert caught.value.param == "messages"


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    checkpoints.text_only(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(InvalidRequest, match="no chat template"):
        ChatTemplate(tmp_path).render([{"role": "user", "content": "x"}])


def test_a_final_message_without_text_cannot_be_continued(path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(path).render(
            [{"role": "assistant", "content": [{"type": "image"}]}], continue_final_message=True
        )
    assert caught.value.param == "continue_final_message"
