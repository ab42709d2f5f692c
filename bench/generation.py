"""Writing training texts: our engine against transformers' own `generate`, `python -m bench.generation`.

Same weights, threads and prompts in one process, the sides in turns. The prompts are chat messages of a JSON Lines
file, answered at temperature 0 until the target ends or ``--max-new`` tokens are there. Ours refills a row as soon as
its text ends; `generate` gets batches in the order of the file, padded on the left, and each takes as long as its
longest text. Tokens that count are those up to the end of each text. The last line is a JSON object: `sides`, each with
`batch`, `tokens`, `tokens_per_s`; `best_engine`, `best_generate` and their `ratio`; `same_tokens`, the share of tokens
before a first difference between the sides, which rounding can make.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from dartspec.services.common.machine import native_dtype, read_machine
from dartspec.services.common.types import Sampling
from dartspec.services.draft.convert_gguf import resolve_model
from dartspec.services.draft.texts.prompts import read_prompts
from dartspec.services.draft.texts.tokenizer import TextTokenizer
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.offline import OfflineStream, Question, started_engine

Answers = list[list[int]]


def _generate(
    model: Any, prompts: Sequence[Sequence[int]], batch: int, max_new: int, stops: Sequence[int], pad: int
) -> Answers:
    answers: Answers = []
    for first in range(0, len(prompts), batch):
        part = prompts[first : first + batch]
        width = max(map(len, part))
        ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in part])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in part])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=max_new, pad_token_id=pad, eos_token_id=stops
            )
        answers += [_up_to_stop(row[width:].tolist(), stops) for row in out]
    return answers


def _up_to_stop(tokens: list[int], stops: Sequence[int]) -> list[int]:
    end = next((at + 1 for at, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:end]


def _ours(stream: OfflineStream, prompts: Sequence[list[int]], batch: int, max_new: int) -> Answers:
    answers: Answers = [[] for _ in prompts]
    questions = (Question(prompt, Sampling(0.0, max_tokens=max_new), 0) for prompt in prompts)
    for answer in stream.answers(questions, batch):
        answers[answer.question] = answer.token_ids
    return answers


def _same(left: Answers, right: Answers) -> float:
    """Share of tokens before the first difference of each pair."""
    agreed = 0
    for a, b in zip(left, right, strict=True):
        agreed += next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return agreed / sum(map(len, left))


@click.command(help=__doc__)
@click.option("--prompts", "file", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--count", default=128, show_default=True, help="Prompts of the file that are answered.")
@click.option("--batch", "batches", multiple=True, type=click.IntRange(1, 256), default=(16, 64), show_default=True)
@click.option("--max-new", default=224, show_default=True, help="Longest answer, in tokens.")
@click.option("--model", default="smollm2-135m", show_default=True)
@click.option("--dtype", default="auto", show_default=True, type=click.Choice(["auto", "float32", "bfloat16"]))
@click.option("--threads", default=0, help="Threads of both sides; 0: as torch decides.")
def main(file: Path, count: int, batches: tuple[int, ...], max_new: int, model: str, dtype: str, threads: int) -> None:
    dtype = dtype if dtype != "auto" else native_dtype(read_machine(), "cpu")[0]
    directory = resolve_model(model)
    tokenizer = TextTokenizer(directory)
    prompts = [tokenizer.prompt_ids(prompt, {}) for prompt in read_prompts([file], plain=False)[:count]]
    settings = VerifierSettings(
        model=model,
        dtype=dtype,
        device="cpu",
        threads=threads,
        budget="fixed:0",
        max_sessions=max(batches),
        invariant="off",
    )
    replica, engine = started_engine(settings)
    theirs: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    stops = list(replica.decoder.target.config.eos_token_ids)
    stream = OfflineStream(engine)

    def of_engine(batch: int, new: int) -> Answers:
        return _ours(stream, prompts if new == max_new else prompts[:batch], batch, new)

    def of_generate(batch: int, new: int) -> Answers:
        asked = prompts if new == max_new else prompts[:batch]
        # On the engine's thread, so that both sides have the same workers.
        return engine.call(lambda: _generate(theirs, asked, batch, new, stops, stops[0])).result()

    sides: list[dict[str, Any]] = []
    answers: dict[str, Answers] = {}
    with tqdm(total=2 * len(batches), unit="run", disable=None) as bar:
        for batch in batches:
            for name, side in (("engine", of_engine), ("generate", of_generate)):
                side(batch, 2)  # kernels for this number of rows are made
                begin = time.perf_counter()
                answers[name] = side(batch, max_new)
                seconds = time.perf_counter() - begin
                tokens = sum(map(len, answers[name]))
                sides.append(
                    {"side": name, "batch": batch, "tokens": tokens, "tokens_per_s": round(tokens / seconds, 1)}
                )
                tqdm.write(json.dumps(sides[-1]), file=sys.stderr)
                bar.update()
    engine.stop()
    best = {
        name: max((side for side in sides if side["side"] == name), key=lambda side: side["tokens_per_s"])
        for name in ("engine", "generate")
    }
    report = {
        "model": model,
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "prompts": len(prompts),
        "max_new": max_new,
        "sides": sides,
        "best_engine": best["engine"],
        "best_generate": best["generate"],
        "ratio": round(best["engine"]["tokens_per_s"] / best["generate"]["tokens_per_s"], 2),
        "same_tokens": round(_same(answers["engine"], answers["generate"]), 4),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
