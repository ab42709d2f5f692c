"""Prompts that the target writes itself: users' messages, after what stands before one in a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.draft.texts.plan import Job, plan
from dartspec.services.draft.texts.prompts import Prompt
from dartspec.services.draft.texts.store import Record
from dartspec.services.draft.texts.write import TEXT

# Warm enough that messages differ.
TEMPERATURE = 0.8
# Shorter ones are greetings and fragments.
LEAST_CHARACTERS = 12
# Two messages that begin with different tokens: what their prompts have in common is what stands before a message.
PROBES = ("a", "7")


def common_prefix(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """The tokens with which the prompts of `PROBES` begin. Raises FailedPrecondition when there are none."""
    same = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    if not same:
        raise FailedPrecondition("--own: a message of this model has nothing before it, so no prompts can be written")
    return tuple(first[:same])


def own_jobs(prefix: tuple[int, ...], count: int, seed: int) -> list[Job]:
    """``count`` texts that go on from a conversation's beginning."""
    return plan([Prompt(token_ids=prefix)] * count, (TEMPERATURE,), seed)


def usable(records: Iterable[Record]) -> list[Prompt]:
    """Those messages that the target ended and that say something."""
    texts = (record[TEXT].strip() for record in records if TEXT in record)
    return [Prompt.user(text) for text in texts if len(text) >= LEAST_CHARACTERS]
