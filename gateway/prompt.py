"""From a conversation, a text or token ids to the prompt's tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
from tokenizers import Tokenizer

from dartspec.gateway.chat_template import compile_template
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.sampling_rules import check_token_ids

# What the conversation and the gateway decide; a template argument must not replace it.
RESERVED_ARGUMENTS = ("messages", "tools", "documents")
LONG_TEXT = 4096  # characters; longer texts are cut into tokens beside the event loop


class PromptBuilder:
    """Makes prompts for one model."""

    def __init__(
        self, tokenizer: Tokenizer, chat_template: str, special_tokens: Mapping[str, str], vocab_size: int
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._special_tokens = dict(special_tokens)
        self._vocab_size = vocab_size

    async def from_chat(self, messages: Sequence[Mapping[str, str]], arguments: Mapping[str, Any]) -> list[int]:
        """Tokens of the rendered conversation; special tokens are those that the template writes."""
        text = self.render(messages, arguments)
        return await self._encode("chat", text, add_special_tokens=False)

    async def from_text(self, text: str) -> list[int]:
        """Tokens of the text, with the special tokens that the tokenizer adds by itself."""
        if not text:
            raise InvalidArgument("text", "must not be empty")
        return await self._encode("text", text, add_special_tokens=True)

    def from_ids(self, token_ids: Sequence[int]) -> list[int]:
        """The ids themselves, if the vocabulary has them."""
        if not token_ids:
            raise InvalidArgument("token_ids", "must hold at least one token id")
        check_token_ids("token_ids", tuple(token_ids), self._vocab_size)
        return list(token_ids)

    def render(self, messages: Sequence[Mapping[str, str]], arguments: Mapping[str, Any]) -> str:
        """The conversation as the model's chat template writes it, up to where the answer begins."""
        if not messages:
            raise InvalidArgument("chat.messages", "must hold at least one message")
        for index, message in enumerate(messages):
            if not message["role"]:
                raise InvalidArgument(f"chat.messages[{index}].role", "must not be empty")
        for name in RESERVED_ARGUMENTS:
            if name in arguments:
                raise InvalidArgument("chat.template_arguments", f"{name} is not an argument; it is set by the request")
        template = self._template
        names = {"add_generation_prompt": True, **self._special_tokens, **arguments}
        try:
            return template.render(messages=messages, tools=None, documents=None, **names)
        except jinja2.TemplateError as error:
            raise InvalidArgument("chat", f"the chat template refuses this conversation: {error}") from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            raise InvalidArgument("chat", f"the chat template fails: {type(error).__name__}: {error}") from error

    @cached_property
    def _template(self) -> jinja2.Template:
        # Compiled when first wanted: a model with a broken template still answers texts and token ids.
        if not self._chat_template:
            raise InvalidArgument("chat", "this model has no chat template; send text or token_ids")
        return compile_template(self._chat_template)

    async def _encode(self, field: str, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) > LONG_TEXT:
            encoding = await asyncio.to_thread(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
        else:
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        if not encoding.ids:
            raise InvalidArgument(field, "gives no tokens; an answer needs a prompt of at least one")
        check_token_ids(field, encoding.ids, self._vocab_size)
        return encoding.ids
