"""What `generate` asks of a gateway; anything left out is the gateway's or the model's own default."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dartspec.services.common.config import between, setting
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.sampling_rules import MAX_TOP_LOGPROBS

MODES = ("auto", "plain", "dart")
MOST_TOKENS = 2**31


def _share(value: float) -> str | None:
    """A check that 0 < value <= 1 (NaN fails)."""
    return None if 0 < value <= 1 else f"must be above 0 and at most 1, got {value}"


@dataclass(frozen=True)
class RequestSettings:
    """One request but for its prompt. The ranges are the gateway's; here they are checked before a stack starts."""

    max_tokens: int = setting(256, "Generate at most this many tokens.", check=between(1, MOST_TOKENS))
    temperature: float | None = setting(None, "0 is argmax.  [default: the model's]", check=between(0, 100))
    top_k: int | None = setting(
        None, "Keep the k best tokens; 0 keeps all.  [default: the model's]", check=between(0, 2**31)
    )
    top_p: float | None = setting(
        None, "Keep the smallest set of this probability.  [default: the model's]", check=_share
    )
    min_p: float | None = setting(
        None, "Keep tokens at least this fraction as likely as the best.  [default: the model's]", check=between(0, 1)
    )
    seed: int | None = setting(
        None, "Key of the sampling noise.  [default: chosen and reported]", check=between(0, 2**64 - 1)
    )
    top_logprobs: int = setting(
        0, "List so many likeliest tokens next to each token, in --json.", check=between(0, MAX_TOP_LOGPROBS)
    )
    stop: tuple[str, ...] = setting((), "End before this text; repeatable.")
    mode: str = setting("auto", "How to decode; the tokens are the same.", choices=MODES)
    raw: bool = setting(False, "Take the prompt as it is instead of as a chat message.")
    system: str | None = setting(None, "System message of the chat.")
    template_arg: tuple[str, ...] = setting(
        (), "KEY=VALUE for the chat template, such as enable_thinking=false; the value is JSON, else text; repeatable."
    )

    @property
    def template_arguments(self) -> dict[str, Any]:
        """``template_arg`` as a mapping. Raises InvalidArgument for one without "="."""
        return dict(_key_value(text) for text in self.template_arg)


def _key_value(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidArgument("--template-arg", f"must be KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value
