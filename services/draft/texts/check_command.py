"""`dartspec draft check-leaks`: the rule of --exclude over texts that exist."""

from __future__ import annotations

import json
from pathlib import Path

import click

SHOWN = 10


@click.command("check-leaks")
@click.option(
    "--text",
    "texts",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    required=True,
    help="Directory of shards, or a shard; repeatable.",
)
@click.option(
    "--exclude",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    required=True,
    help="Evaluation prompts, a file or a directory; repeatable.",
)
@click.option("--model", default="smollm2-135m", show_default=True, help="Whose tokens the texts are made of.")
@click.option("--revision", default=None, help="Revision of a hub id.")
def check_leaks(texts: tuple[Path, ...], exclude: tuple[Path, ...], model: str, revision: str | None) -> int:
    """Say which texts hold an evaluation prompt, in their prompt, in their answer or across both.

    The last line is a JSON object with counts; exit code 1 when there is one.
    """
    from dartspec.services.draft.convert_gguf import resolve_model
    from dartspec.services.draft.texts.leaks import counted, read_evaluation
    from dartspec.services.draft.texts.store import read_records
    from dartspec.services.draft.texts.tokenizer import TextTokenizer
    from dartspec.services.draft.train.data import shard_files

    check, _ = read_evaluation(exclude)
    shards = shard_files(texts)
    tokenizer = TextTokenizer(resolve_model(model, revision))
    found: list[str] = []
    total = 0
    for shard in shards:
        for number, record in enumerate(read_records(shard), 1):
            total += 1
            # Foreign text is cut behind its first token, so the two together count as well.
            parts = [tokenizer.decode(ids) for ids in (record["p"], record["o"], record["p"] + record["o"])]
            reason = check.first_reason(parts)
            if reason is None:
                continue
            found.append(reason)
            if len(found) <= SHOWN:
                click.echo(f"{shard}, line {number}: {reason}: {parts[0][-80:]!r}", err=True)
    click.echo(json.dumps({"texts": total, "evaluation_prompts": len(check), "leaks": counted(found)}))
    return 1 if found else 0
