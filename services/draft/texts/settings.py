"""Settings of `dartspec draft generate`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dartspec.services.common.config import address_problem, between, setting
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.sampling_rules import MAX_TEMPERATURE
from dartspec.services.common.size import at_least

DTYPES = ("auto", "bfloat16", "float32")


def _temperatures(values: Sequence[float]) -> str | None:
    wrong = next((value for value in values if not (math.isfinite(value) and 0 <= value <= MAX_TEMPERATURE)), None)
    if wrong is not None:
        return f"must be between 0 and {MAX_TEMPERATURE:g}, got {wrong:g}"
    return "0 twice gives every text twice; give it once" if list(values).count(0.0) > 1 else None


def _exist(paths: Sequence[Path]) -> str | None:
    return next((f"{path} does not exist" for path in paths if not path.exists()), None)


def _address(value: str) -> str | None:
    return address_problem(value) if value else None


def _memory(value: str) -> str | None:
    return None if value == "0" else at_least("64M")(value)


@dataclass(frozen=True)
class GenerateSettings:
    """One run of `dartspec draft generate`."""

    out: str = setting("", "Directory of the shards; one with texts of the same run is continued.  [required]")
    prompts: tuple[Path, ...] = setting(
        (), "JSON Lines file with prompt, turns (the first is used) or messages; repeatable.", check=_exist
    )
    plain: bool = setting(False, "Take prompts as text to go on with instead of as chat messages.")
    own: int = setting(
        0, "So many prompts that the target writes itself, from its bare chat prefix.", check=between(0, 10**7)
    )
    foreign: tuple[Path, ...] = setting(
        (),
        'Text that somebody else wrote, .jsonl with "text" or .txt, which is only cut into tokens; repeatable.',
        check=_exist,
    )
    temperature: tuple[float, ...] = setting(
        (0.0,), "Each prompt is answered at each; repeatable.", check=_temperatures
    )
    exclude: tuple[Path, ...] = setting(
        (), "Evaluation prompts, a file or a directory: prompts that hold one are dropped; repeatable.", check=_exist
    )
    max_new: int = setting(224, "Longest answer, in tokens.", check=between(2, 2**20))
    capacity: int = setting(511, "Longest prompt with answer, in tokens.", check=between(8, 2**20))
    seed: int = setting(0, "What the seeds of all texts are made from.", check=between(0, 2**63))
    shard: int = setting(1024, "Texts in a shard.", check=between(1, 10**7))
    template_arg: tuple[str, ...] = setting(
        (), "KEY=VALUE for the chat template, such as enable_thinking=false; the value is JSON, else text; repeatable."
    )
    date: str = setting("", "Date to put into the manifest; without it equal runs make equal manifests.")
    gateway: str = setting("", "Let the cluster behind this gateway write, instead of an engine here.", check=_address)
    concurrency: int = setting(64, "With --gateway: answers asked for at once.", check=between(1, 4096))
    model: str = setting(
        "",
        "Target: a directory, a hub id, a .gguf file, or smollm2-135m, which is the default. With --gateway: the "
        "model's name there, needed when it has several.",
    )
    revision: str = setting("", "Revision of a hub id.")
    dtype: str = setting(
        "auto", "Precision of the target; auto is bfloat16 where it is native, else float32.", choices=DTYPES
    )
    device: str = setting("auto", "cpu, cuda, cuda:N, or auto: cuda when there is one.")
    threads: int = setting(0, "Processor threads of the engine; 0: as torch decides.", check=between(0, 1024))
    rows: int = setting(64, "Texts that the engine writes at once.", check=between(1, 256))
    memory: str = setting(
        "0", "Most memory of the engine, such as 8G; 0: half of what is free, or 85% of a GPU's.", check=_memory
    )
    invariant: str = setting(
        "off",
        "Compute rows so that no text depends on what is written beside it, see docs/exactness.md; slower.",
        choices=("off", "on"),
    )

    @property
    def template_arguments(self) -> dict[str, Any]:
        """``template_arg`` as a mapping. Raises InvalidArgument for one without "="."""
        return dict(_key_value(text) for text in self.template_arg)

    @property
    def directory(self) -> Path:
        """``out``. Raises InvalidArgument when it is missing or no directory."""
        if not self.out:
            raise InvalidArgument("--out", "is missing; name the directory that the texts go to")
        path = Path(self.out)
        if path.exists() and not path.is_dir():
            raise InvalidArgument("--out", f"{path} is a file; name a directory")
        return path

    def check(self) -> None:
        """Raise InvalidArgument for settings that contradict each other."""
        self.directory  # noqa: B018
        self.template_arguments  # noqa: B018
        if not (self.prompts or self.own or self.foreign):
            message = (
                "is missing; give --prompts FILE, --own N for prompts that the target writes itself, or --foreign FILE"
            )
            raise InvalidArgument("--prompts", message)
        if self.foreign and (self.prompts or self.own or self.gateway):
            raise InvalidArgument(
                "--foreign", "is a run of its own, without a target; leave out --prompts, --own and --gateway"
            )
        if self.plain and self.own:
            raise InvalidArgument("--own", "writes users' messages of a chat, which --plain has none of; leave out one")
        if self.max_new >= self.capacity:
            raise InvalidArgument(
                "--max-new", f"{self.max_new} leaves no room for a prompt in --capacity {self.capacity}; lower it"
            )


def _key_value(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidArgument("--template-arg", f"must be KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
