"""A model directory's tokenizer, for prompts and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dartspec.services.common.errors import FailedPrecondition, InvalidArgument
from dartspec.services.common.fingerprint import tokenizer_fingerprint
from dartspec.services.draft.texts.prompts import Prompt


class TextTokenizer:
    """Tokens as a gateway makes them of the same prompts."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        except (OSError, ValueError) as error:
            raise FailedPrecondition(f"--model: no tokenizer in {str(directory)!r}: {error}", field="model") from error

    @property
    def fingerprint(self) -> str:
        """What the token ids mean, see `tokenizer_fingerprint`."""
        return tokenizer_fingerprint(self._tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True))

    def prompt_ids(self, prompt: Prompt, template_arguments: Mapping[str, Any]) -> list[int]:
        """Token ids of a prompt. Raises InvalidArgument when there is no chat template, or it refuses the messages."""
        if prompt.token_ids:
            return list(prompt.token_ids)
        if not prompt.messages:
            return self.text_ids(prompt.text)
        messages = [{"role": role, "content": content} for role, content in prompt.messages]
        if not self._tokenizer.chat_template:
            raise InvalidArgument("--prompts", "the model has no chat template; --plain takes prompts as they are")
        try:
            text = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **template_arguments
            )
        except Exception as error:  # templates are programs and fail as they like
            raise InvalidArgument(
                "--prompts", f"the chat template refuses {messages[-1]['content'][:60]!r}: {error}"
            ) from error
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def text_ids(self, text: str) -> list[int]:
        """Token ids of a text as it is, with the special tokens that the tokenizer adds by itself."""
        return list(self._tokenizer(text)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))
