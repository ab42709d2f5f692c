"""The runs behind a comparison: each prompt in both modes, one after the other, nothing else in flight."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import AsyncIterator, Sequence

from dartspec.cli.client import GatewayClient
from dartspec.cli.compare import Pair
from dartspec.cli.prompts import Prompt
from dartspec.cli.request_settings import RequestSettings

WARM_UP_TOKENS = 16


def with_seed(settings: RequestSettings) -> RequestSettings:
    """The settings with a seed chosen where there is none, so that both modes get the same."""
    return settings if settings.seed is not None else dataclasses.replace(settings, seed=secrets.randbits(32))


async def run_pairs(
    client: GatewayClient, prompts: Sequence[Prompt], settings: RequestSettings, repeat: int = 1
) -> AsyncIterator[Pair]:
    """Answer every prompt ``repeat`` times in both modes, after a short warm-up of each mode that counts for nothing.

    The modes take turns in going first, so that neither gains from a machine that grows faster or slower.
    """
    settings = with_seed(settings)
    plain, dart = (dataclasses.replace(settings, mode=mode) for mode in ("plain", "dart"))
    for mode in (plain, dart):
        warm_up = dataclasses.replace(mode, max_tokens=min(WARM_UP_TOKENS, settings.max_tokens))
        await client.answer(prompts[0].text, warm_up)
    for turn, prompt in enumerate(prompt for _ in range(repeat) for prompt in prompts):
        answers = {}
        for mode in (plain, dart) if turn % 2 == 0 else (dart, plain):
            answers[mode.mode] = await client.answer(prompt.text, mode)
        yield Pair(prompt.name, answers["plain"], answers["dart"])
