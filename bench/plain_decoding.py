"""The engine's plain decoding against transformers' own `generate`: `python -m bench.plain_decoding`.

Same weights, threads and prompts in one process, the two in turns; ratios are medians over the turns. `generate` gets
the prompts of a level as one batch, padded on the left. The last line is a JSON object with `levels`: `sessions`,
`generate_tokens_per_s`, `engine_tokens_per_s` (medians), `ratio`, `same_tokens` (share of the tokens before a first
difference, which rounding can make).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from bench.engine_driver import EngineClient, text_windows
from dartspec.services.draft.convert_gguf import resolve_model
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.offline import started_engine

LEVELS = (1, 16)

Answers = list[list[int]]


def _generate(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> Answers:
    ids = torch.tensor(prompts)
    # Prompts of one length need no padding, which is the best case for `generate`.
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )
    return [row[ids.shape[1] :].tolist() for row in out]


def _timed(function: Callable[[], Answers]) -> tuple[float, Answers]:
    begin = time.perf_counter()
    answers = function()
    return sum(map(len, answers)) / (time.perf_counter() - begin), answers


def _same(left: Answers, right: Answers) -> float:
    """Share of tokens before the first difference of each pair."""
    agreed = 0
    for a, b in zip(left, right, strict=True):
        agreed += next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
    return agreed / sum(map(len, left))


@click.command(help=__doc__)
@click.option("--level", "levels", multiple=True, type=click.IntRange(1), default=LEVELS, show_default=True)
@click.option("--turns", default=5, show_default=True, help="Measurements of each side at each level.")
@click.option("--tokens", default=64, show_default=True, help="Tokens of an answer.")
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(["float32", "bfloat16"]))
@click.option("--threads", default=0, help="Threads of both sides; 0: as torch decides.")
def main(levels: tuple[int, ...], turns: int, tokens: int, dtype: str, threads: int) -> None:
    settings = VerifierSettings(model="smollm2-135m", head="none", dtype=dtype, threads=threads, budget="fixed:0")
    replica, engine = started_engine(settings)
    model: Any = AutoModelForCausalLM.from_pretrained(resolve_model("smollm2-135m"), dtype=getattr(torch, dtype)).eval()
    client = EngineClient(engine)

    def generate(prompts: Sequence[Sequence[int]], tokens: int) -> Answers:
        # On the engine's thread, so that both sides have the same workers.
        return engine.call(lambda: _generate(model, prompts, tokens)).result()

    def ours_of(prompts: Sequence[Sequence[int]], tokens: int) -> Answers:
        return [answer.tokens for answer in client.answers(prompts, tokens)]

    report = []
    with tqdm(total=len(levels) * turns, unit="turn", disable=None) as bar:
        for level in levels:
            prompts = text_windows(replica, level)
            ours: list[float] = []
            theirs: list[float] = []
            same = []
            client.answers(prompts, 4)
            generate(prompts, 4)
            for turn in range(turns):
                sides = [(ours, partial(ours_of, prompts, tokens)), (theirs, partial(generate, prompts, tokens))]
                found = []
                for rates, side in sides if turn % 2 == 0 else sides[::-1]:
                    rate, answers = _timed(side)
                    rates.append(rate)
                    found.append(answers)
                same.append(_same(*found))
                bar.update()
            report.append(
                {
                    "sessions": level,
                    "generate_tokens_per_s": round(statistics.median(theirs), 1),
                    "engine_tokens_per_s": round(statistics.median(ours), 1),
                    "ratio": round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3),
                    "same_tokens": round(statistics.median(same), 4),
                }
            )
    engine.stop()
    print(json.dumps({"dtype": dtype, "threads": torch.get_num_threads(), "tokens": tokens, "levels": report}))


if __name__ == "__main__":
    main()
