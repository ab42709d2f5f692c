"""A run of `dartspec draft generate`, from its settings to a complete directory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from dartspec import __version__
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.draft.texts import manifest
from dartspec.services.draft.texts.foreign import cut_into_texts, documents, foreign_files
from dartspec.services.draft.texts.leaks import LeakCheck, counted, read_evaluation
from dartspec.services.draft.texts.own_prompts import own_jobs, usable
from dartspec.services.draft.texts.plan import choose_prompts, plan
from dartspec.services.draft.texts.prompts import Prompt, read_prompts
from dartspec.services.draft.texts.settings import GenerateSettings
from dartspec.services.draft.texts.store import DUPLICATE, TOO_LONG, TextStore
from dartspec.services.draft.texts.tokenizer import TextTokenizer
from dartspec.services.draft.texts.write import TargetName, Writer, write_texts

# Where in --out the texts are from which the target's own prompts were taken.
OWN = "own"

Result = dict[str, Any]
OpenWriter = Callable[[GenerateSettings], AbstractContextManager[Writer]]


@dataclass(frozen=True)
class Inputs:
    """What is read before anything is loaded."""

    prompts: list[Prompt]
    foreign: list[Path]
    check: LeakCheck | None
    description: dict[str, Any]  # of the manifest, but for the target


def run(settings: GenerateSettings, open_writer: OpenWriter, open_tokenizer: Callable[[], TextTokenizer]) -> Result:
    """Write what is missing of a run; returns the manifest's "result".

    Raises a DartspecError naming the setting, file or line before anything is loaded or written.
    """
    settings.check()
    directory = settings.directory
    inputs = read_inputs(settings)
    if (done := manifest.result(directory, inputs.description)) is not None:
        click.echo(f"{directory} is complete already", err=True)
        return done
    if settings.foreign:
        return _cut_foreign(settings, inputs, open_tokenizer())
    with open_writer(settings) as writer:
        description = _described(inputs, writer.target)
        manifest.begin(directory, description)
        own = _own_prompts(settings, writer) if settings.own else []
        chosen = choose_prompts([*inputs.prompts, *own], inputs.check)
        if not chosen.prompts:
            raise InvalidArgument("--prompts", f"nothing is left: {_why(chosen.leaks)}")
        if chosen.leaks:
            click.echo(
                f"{len(chosen.leaks)} prompts dropped that hold an evaluation prompt: {_why(chosen.leaks)}", err=True
            )
        jobs = plan(chosen.prompts, settings.temperature, settings.seed)
        with TextStore(directory, settings.shard) as store:
            write_texts(jobs, writer, store, "texts")
            prompts = {"used": len(chosen.prompts), "own": len(own), "duplicates": chosen.duplicates}
            result = {"prompts": {**prompts, "leaks": counted(chosen.leaks)}, **_counts(store)}
    manifest.complete(directory, description, result)
    return result


def read_inputs(settings: GenerateSettings) -> Inputs:
    """Read and check every file that the settings name."""
    prompts = read_prompts(settings.prompts, settings.plain)
    check, excluded = read_evaluation(settings.exclude) if settings.exclude else (None, [])
    foreign = foreign_files(settings.foreign)
    for _ in documents(foreign):  # a bad line at the end should not be found at the end
        continue
    if prompts and not settings.own and not (chosen := choose_prompts(prompts, check)).prompts:
        raise InvalidArgument("--prompts", f"every prompt holds one of --exclude: {_why(chosen.leaks)}")
    description = {
        "dartspec": __version__,
        **({"date": settings.date} if settings.date else {}),
        "prompts": manifest.file_entries(settings.prompts),
        "plain": settings.plain,
        "own": settings.own,
        "foreign": manifest.file_entries(foreign),
        "exclude": manifest.file_entries(excluded),
        "temperatures": list(settings.temperature),
        "seed": settings.seed,
        "max_new": settings.max_new,
        "capacity": settings.capacity,
        "shard": settings.shard,
        "template_arguments": settings.template_arguments,
    }
    return Inputs(prompts, foreign, check, description)


def _own_prompts(settings: GenerateSettings, writer: Writer) -> list[Prompt]:
    jobs = own_jobs(writer.chat_prefix(), settings.own, settings.seed)
    with TextStore(settings.directory / OWN, settings.shard) as store:
        write_texts(jobs, writer, store, "own prompts", with_text=True)
        return usable(store.records())


def _cut_foreign(settings: GenerateSettings, inputs: Inputs, tokenizer: TextTokenizer) -> Result:
    description = _described(inputs, TargetName("", "", tokenizer.fingerprint, ""))
    manifest.begin(settings.directory, description)
    with TextStore(settings.directory, settings.shard) as store:
        leaks = cut_into_texts(inputs.foreign, tokenizer.text_ids, inputs.check, settings.capacity, store)
        result = {"documents": {"leaks": counted(leaks)}, **_counts(store)}
    manifest.complete(settings.directory, description, result)
    return result


def _described(inputs: Inputs, target: TargetName) -> dict[str, Any]:
    known = {name: value for name, value in asdict(target).items() if value}
    return {"target": known, **inputs.description}


def _counts(store: TextStore) -> Result:
    return {
        "texts": store.texts,
        "tokens": store.tokens,
        "prompt_tokens": store.prompt_tokens,
        "dropped": {"duplicates": store.dropped[DUPLICATE], "too_long": store.dropped[TOO_LONG]},
    }


def _why(leaks: list[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counted(leaks).items())
