"""`dartspec draft`: from a target and prompts to a head."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.draft.convert_gguf import PACKAGED_MODEL, resolve_model
from dartspec.services.draft.train.command import train

_model_options = [
    click.option("--model", default=PACKAGED_MODEL, show_default=True, help="Directory, hub id, .gguf file or name."),
    click.option("--revision", default=None, help="Revision of a hub id."),
    click.option("--threads", type=click.IntRange(1), default=None, help="CPU threads of this process."),
]


def _with_model(function: Any) -> Any:
    for option in reversed(_model_options):
        function = option(function)
    return function


@click.group()
def draft() -> None:
    """Make a draft head: let the target write text, then train on it."""


@draft.command()
@_with_model
@click.option("--prompts", type=click.Path(exists=True, path_type=Path), help='JSONL with "prompt" or "turns".')
@click.option(
    "--own", type=click.IntRange(0), default=0, help="Prompts that the target writes from its bare chat prefix."
)
@click.option(
    "--temperature", "temperatures", type=click.FloatRange(0), multiple=True, default=(0.0,), show_default=True
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="JSONL shard; an existing one is continued."
)
@click.option("--rows", type=click.IntRange(1), default=64, show_default=True, help="Texts written in parallel.")
@click.option("--max-new", type=click.IntRange(2), default=224, show_default=True, help="Longest answer, in tokens.")
@click.option("--capacity", type=click.IntRange(8), default=512, show_default=True, help="Longest text, in tokens.")
@click.option("--seed", type=int, default=0, show_default=True)
def generate(
    model: str,
    revision: str | None,
    threads: int | None,
    prompts: Path | None,
    own: int,
    temperatures: tuple[float, ...],
    out: Path,
    rows: int,
    max_new: int,
    capacity: int,
    seed: int,
) -> None:
    """Write texts: every prompt once per temperature."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dartspec.services.draft.train.generate import Writer, WritingTask, write_shard

    if prompts is None and not own:
        raise InvalidArgument("prompts", "give --prompts FILE, or --own N for prompts that the target writes itself")
    directory = resolve_model(model, revision)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    target = AutoModelForCausalLM.from_pretrained(directory, dtype=_bfloat16(threads)).eval()
    stops = target.generation_config.eos_token_id
    stop_ids = frozenset(stops if isinstance(stops, list) else [stops])
    writer = Writer(target, stop_ids, rows, max_new, capacity, seed)
    chats = list(_chats(prompts)) if prompts else []
    if own:
        chats += _own_prompts(writer, tokenizer, stop_ids, own, out.with_suffix(".prompts.jsonl"))
    tasks = []
    for number, (chat, temperature) in enumerate((c, t) for t in temperatures for c in chats):
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        tasks.append(WritingTask(number, tuple(ids), temperature))
    random.Random(seed).shuffle(tasks)
    click.echo(f"{write_shard(writer, tasks, out)} tokens written to {out}")


draft.add_command(train)


def _bfloat16(threads: int | None) -> Any:
    import torch

    if threads:
        torch.set_num_threads(threads)
    return torch.bfloat16


def _chats(path: Path) -> Iterator[list[dict[str, str]]]:
    """Chat messages of a JSONL file with "prompt" or "turns" (the first turn counts), duplicates dropped."""
    seen: set[str] = set()
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                prompt = record["prompt"] if "prompt" in record else record["turns"][0]
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise InvalidArgument(
                    "prompts", f'{path}:{number} has neither "prompt" nor "turns": {error}'
                ) from error
            if prompt not in seen:
                seen.add(prompt)
                yield [{"role": "user", "content": prompt}]


def _own_prompts(writer: Any, tokenizer: Any, stop_ids: frozenset[int], count: int, shard: Path) -> list[Any]:
    """User turns that the target writes after the bare chat prefix, those that end and say something."""
    from dartspec.services.draft.train.generate import WritingTask, write_shard

    marker = "\u241f"
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": marker}], tokenize=False)
    prefix = tuple(tokenizer(rendered[: rendered.index(marker)], add_special_tokens=False)["input_ids"])
    write_shard(writer, [WritingTask(number, prefix, 0.8) for number in range(count)], shard)
    prompts: dict[str, None] = {}
    with shard.open() as lines:
        for answer in (json.loads(line)["o"] for line in lines):
            text = tokenizer.decode(answer[:-1]).strip()
            if answer[-1] in stop_ids and len(text) >= 12:
                prompts[text] = None
    return [[{"role": "user", "content": prompt}] for prompt in prompts]
