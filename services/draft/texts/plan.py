"""Which texts a run writes: every prompt once per temperature; order and seeds follow from them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dartspec.services.draft.texts.leaks import LeakCheck
from dartspec.services.draft.texts.prompts import Prompt


@dataclass(frozen=True)
class Job:
    """One text to write. ``index`` is its place among the run's texts, ``seed`` the key of its sampling noise."""

    index: int
    prompt: Prompt
    temperature: float
    seed: int


def plan(prompts: Iterable[Prompt], temperatures: Sequence[float], seed: int) -> list[Job]:
    """Jobs for every pair of prompt and temperature, as often as it occurs.

    A text's seed is a digest of the run's seed, its prompt, its temperature and how often the pair came before; jobs
    are sorted by it, which mixes prompts of all kinds, and a prompt more or less changes no other text.
    """
    seen: dict[tuple[str, float], int] = {}
    keyed = []
    for prompt in prompts:
        for temperature in temperatures:
            pair = (prompt.key, temperature)
            seen[pair] = repetition = seen.get(pair, -1) + 1
            name = json.dumps([seed, *pair, repetition], ensure_ascii=False)
            keyed.append((hashlib.sha256(name.encode()).digest(), prompt, temperature))
    keyed.sort(key=lambda entry: entry[0])
    return [
        Job(index, prompt, temperature, int.from_bytes(name[:8], "big"))
        for index, (name, prompt, temperature) in enumerate(keyed)
    ]


@dataclass(frozen=True)
class Chosen:
    """Prompts that stay, how many were repetitions, and why each of the others was left out (`leaks.REASONS`)."""

    prompts: list[Prompt]
    duplicates: int
    leaks: list[str]


def choose_prompts(prompts: Iterable[Prompt], check: LeakCheck | None) -> Chosen:
    """Each prompt once, without those that hold an evaluation prompt."""
    kept: dict[str, Prompt] = {}
    duplicates, leaks = 0, []
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.key in seen:
            duplicates += 1
            continue
        seen.add(prompt.key)
        reason = check.first_reason(prompt.contents) if check is not None else None
        if reason is None:
            kept[prompt.key] = prompt
        else:
            leaks.append(reason)
    return Chosen(list(kept.values()), duplicates, leaks)
