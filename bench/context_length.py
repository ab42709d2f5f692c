"""Tokens committed a round with more and more context: `python -m bench.context_length --data DIRECTORY`.

The target answers prompts of all files by themselves. Then it is asked others, in chats that have as many of those
earlier turns, questions and answers, as a length allows, and rounds are replayed as `dartspec draft eval` does it. The
last line is a JSON object.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm
from transformers import AutoTokenizer

from dartspec.cli.index import choose_index
from dartspec.cli.prompts import read_prompts
from dartspec.cli.stack_settings import StackSettings
from dartspec.services.draft.convert_gguf import resolve_model
from dartspec.services.evaluate.grid import Grid, Search
from dartspec.services.evaluate.record import Ask, Recording, hit_rates, record
from dartspec.services.evaluate.rounds import committed_by_budget
from dartspec.services.evaluate.run import load, open_reader, pooled, sampling_at
from dartspec.services.evaluate.settings import EvaluateSettings, Evaluation
from dartspec.services.verifier.replica import Replica

Turn = list[int]  # token ids of a question, the header of its answer, the answer and its end


def turns_of(recordings: list[Recording], end: list[int]) -> list[Turn]:
    """What each answered prompt looks like in a chat that goes on; ``end`` closes answers that were cut."""
    closed = []
    for recording in recordings:
        answer = recording.tokens[recording.prompt_length :]
        while answer and answer[-1] in recording.stop_ids:
            answer = answer[:-1]
        closed.append([*recording.tokens[: recording.prompt_length], *answer, *end])
    return closed


def beginning(start: list[int], turns: list[Turn], room: int) -> list[int]:
    """The start of a chat and as much of the last turns as makes ``room`` tokens with it, the first of them cut."""
    earlier = [token for turn in turns for token in turn]
    return start + earlier[max(0, len(earlier) + len(start) - room) :]


def _asked(replica: Replica, prompts: list[list[int]], tokens: int, what: str) -> list[Recording]:
    sampling = sampling_at(replica, 0.0, tokens)
    with tqdm(total=len(prompts), unit="answer", desc=what, disable=None) as bar:
        asks = [Ask(ids, sampling, 0, (False,)) for ids in prompts]
        return record(replica.decoder, replica.admission, asks, bar.update)


@click.command(help=__doc__)
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option(
    "--context", "lengths", type=click.IntRange(64), multiple=True, default=(512, 2000, 8000), show_default=True
)
@click.option("--per-file", type=click.IntRange(1), default=4, show_default=True, help="Prompts measured of each file.")
@click.option(
    "--earlier", type=click.IntRange(1), default=10, show_default=True, help="Prompts of each file for earlier turns."
)
@click.option("--tokens", type=click.IntRange(3), default=64, show_default=True, help="Longest measured answer.")
@click.option("--theta", "budgets", type=click.IntRange(1, 1024), multiple=True, default=(59, 16), show_default=True)
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "bfloat16"]))
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
def main(
    data: Path,
    lengths: tuple[int, ...],
    per_file: int,
    earlier: int,
    tokens: int,
    budgets: tuple[int, ...],
    dtype: str,
    threads: int,
) -> None:
    files = {file.stem: file for file in sorted(data.glob("*.jsonl"))}
    if not files:
        raise click.BadParameter(f"{data} holds no .jsonl file", param_hint="'--data'")
    stack = StackSettings(dtype=dtype)
    choice = choose_index(None, stack.model)
    assert stack.head_source is not None
    assert choice is not None
    evaluation = Evaluation(
        model=stack.model,
        revision="",
        head=stack.head_source,
        index=choice.path,
        corpus=choice.corpus,
        tasks={},
        share_noise=(False,),
        grid=Grid(theta=budgets),
        settings=EvaluateSettings(rows=16, dtype=dtype, threads=threads),
    )
    replica = load(evaluation, 25)
    reader = open_reader(evaluation, replica)
    longest = replica.admission.context_length - tokens
    if max(lengths) > longest:
        lengths = tuple(dict.fromkeys(min(length, longest) for length in lengths))
        click.echo(f"the model has room for {longest} tokens before an answer of {tokens}", err=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(resolve_model(stack.model, None))

    def question(text: str) -> list[int]:
        # Without what the template puts before a chat: these stand in the middle of one.
        text = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return tokenizer.encode(text, add_special_tokens=False)

    end = tokenizer.encode("<|im_end|>\n", add_special_tokens=False)
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    start = whole[: len(whole) - len(question("?"))]
    asked: dict[str, list[list[int]]] = {}
    before: list[list[int]] = []
    for name, file in files.items():
        texts = [prompt.text for prompt in read_prompts(file, per_file + earlier)]
        asked[name] = [question(text) for text in texts[:per_file]]
        before += [question(text) for text in texts[per_file:]]
    random.Random(0).shuffle(before)  # turns of all files, since one does not have enough of them
    turns = turns_of(_asked(replica, before, 160, "earlier turns"), end)

    search = Search("survival", 25, rule="auto", weight=0.5)
    rows = []
    for length in lengths:
        # One for all questions, so that its keys and values are computed once.
        longest_question = max(len(ids) for found in asked.values() for ids in found)
        before_all = beginning(start, turns, max(length - longest_question, len(start)))
        prompts = {name: [before_all + ids for ids in found] for name, found in asked.items()}
        flat = _asked(replica, [ids for found in prompts.values() for ids in found], tokens, f"{length} tokens")
        recordings = {name: [flat.pop(0) for _ in found] for name, found in prompts.items()}
        row: dict[str, Any] = {"context": length}
        for theta in budgets:
            sums = {
                name: pooled(committed_by_budget(found, False, search, [theta], reader)[theta])
                for name, found in recordings.items()
            }
            means = {name: round(one.mean, 3) for name, one in sums.items() if one.mean is not None}
            row[f"theta_{theta}"] = {**means, "mean": round(sum(means.values()) / len(means), 3)}
        every = [recording for found in recordings.values() for recording in found]
        row["hit1"] = [round(rate, 3) for rate in hit_rates(every, False, 1)]
        rows.append(row)
        click.echo(json.dumps(row), err=True)
    click.echo(json.dumps({"dtype": dtype, "per_file": per_file, "tokens": tokens, "contexts": rows}))


if __name__ == "__main__":
    main()
