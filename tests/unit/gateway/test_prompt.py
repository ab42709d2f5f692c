"""Prompts: templates as model authors write them, and errors that name the field."""

from __future__ import annotations

import datetime

import pytest
from google.protobuf import struct_pb2

from dartspec.gateway.convert import request_from_proto
from dartspec.gateway.prompt import PromptBuilder
from dartspec.services.common.errors import InvalidArgument
from dartspec.v1 import gateway_pb2
from tests.fakes import CHAT_TEMPLATE, byte_tokenizer

USER = [{"role": "user", "content": "hi"}]


def builder(template: str = CHAT_TEMPLATE, vocab_size: int = 1000) -> PromptBuilder:
    return PromptBuilder(byte_tokenizer(), template, {"eos_token": "<eos>"}, vocab_size)


async def test_chat_is_rendered_and_cut_into_tokens() -> None:
    ids = await builder().from_chat(USER, {})
    assert byte_tokenizer().decode(ids, skip_special_tokens=False) == "<|user|>hi\n<|assistant|>"


async def test_a_long_text_gives_the_same_tokens_as_a_short_one() -> None:
    text = "hello world " * 1000
    assert await builder().from_text(text) == byte_tokenizer().encode(text).ids


def test_template_arguments_reach_the_template() -> None:
    assert builder().render(USER, {"enable_thinking": False}).endswith("<|assistant|>(no thinking)")
    assert builder().render(USER, {"add_generation_prompt": False}) == "<|user|>hi\n"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ eos_token }}", "<eos>"),
        (
            "{% for m in messages %}\n  {% if m.role == 'user' %}\nU{{ m.content }}\n  {% endif %}\n{% endfor %}",
            "Uhi\n",
        ),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi"}'),
        ("{{ '<é>' | tojson }}", '"<é>"'),
        ("{{ {'b': 1, 'a': [1]} | tojson(indent=1) }}", '{\n "b": 1,\n "a": [\n  1\n ]\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
        ("{{ 'none' if tools is none and documents is none }}", "none"),
        ("{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}", "2"),
    ],
)
def test_what_templates_use(template: str, expected: str) -> None:
    assert builder(template).render(USER, {}) == expected


def test_templates_know_the_date() -> None:
    before = datetime.datetime.now().strftime("%Y")
    assert builder("{{ strftime_now('%Y') }}").render(USER, {}) in {before, str(int(before) + 1)}


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.x.y }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",  # the sandbox: what is given cannot be changed
        "{{ ''.__class__.__mro__ }}",
        "{% if %}",
    ],
)
async def test_a_failing_template_is_an_error_of_the_chat(template: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        await builder(template).from_chat(USER, {})
    assert error.value.field == "chat"


async def test_what_the_template_says_reaches_the_client() -> None:
    with pytest.raises(InvalidArgument, match="roles must alternate"):
        await builder("{{ raise_exception('roles must alternate') }}").from_chat(USER, {})


async def test_a_broken_template_leaves_texts_alone() -> None:
    assert await builder("{% if %}").from_text("hi") == byte_tokenizer().encode("hi").ids


@pytest.mark.parametrize(
    ("messages", "arguments", "field"),
    [
        ([], {}, "chat.messages"),
        ([*USER, {"role": "", "content": "x"}], {}, "chat.messages[1].role"),
        (USER, {"messages": []}, "chat.template_arguments"),
        (USER, {"tools": []}, "chat.template_arguments"),
    ],
)
def test_bad_chats(messages: list[dict[str, str]], arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        builder().render(messages, arguments)
    assert error.value.field == field


async def test_no_template_no_tokens_unknown_ids() -> None:
    with pytest.raises(InvalidArgument, match="no chat template"):
        await builder("").from_chat(USER, {})
    with pytest.raises(InvalidArgument) as empty:
        await builder().from_text("")
    assert empty.value.field == "text"
    with pytest.raises(InvalidArgument) as nothing:
        await builder("{# nothing #}").from_chat(USER, {})
    assert nothing.value.field == "chat"
    with pytest.raises(InvalidArgument) as unknown:
        builder().from_ids([1, 1000])
    assert unknown.value.field == "token_ids"
    assert "id 1000 at index 1" in unknown.value.message
    with pytest.raises(InvalidArgument) as none:
        builder().from_ids([])
    assert none.value.field == "token_ids"


def test_whole_numbers_in_arguments_stay_whole() -> None:
    arguments = struct_pb2.Struct()
    arguments.update({"budget": 3, "deep": {"list": [1, 2.5]}, "flag": True})
    message = gateway_pb2.GenerateRequest(chat=gateway_pb2.Chat(template_arguments=arguments))
    assert builder("{{ budget }} {{ deep }} {{ flag }}").render(
        USER, request_from_proto(message).input.template_arguments
    ) == ("3 {'list': [1, 2.5]} True")
