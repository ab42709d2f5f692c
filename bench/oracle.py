"""What the adaptive budget makes of perfect candidates: `python -m bench.oracle`.

An engine in this process with the demo head; every tree is the answer's own next tokens, cut to `--depth`, so that each
round commits one more than that. Plain and oracle take turns; rates count from when
all prompts have been read. What the cost table predicts is
(1 + depth) T_V(N) / (T_V((1 + depth) N) + T_D) with T_D as the engine measured it. The last line is a JSON object with
`levels`: `sessions`, `plain_tokens_per_s`, `oracle_tokens_per_s` (medians), `ratio`, `predicted`, `share` of the
predicted gain that was reached, `mean_committed`.
"""

from __future__ import annotations

import json
import statistics

import click
from tqdm import tqdm

from bench.engine_driver import EngineClient, text_windows, true_chains
from dartspec.cli.locations import BUILT_IN_MODEL, shipped_directory
from dartspec.services.verifier.adaptive import AdaptiveBudget
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.offline import started_engine


@click.command(help=__doc__)
@click.option("--level", "levels", multiple=True, type=click.IntRange(1), default=(1, 2, 4, 8, 16), show_default=True)
@click.option("--turns", default=3, show_default=True, help="Measurements of each side at each level.")
@click.option("--tokens", default=96, show_default=True, help="Tokens of an answer.")
@click.option("--depth", default=3, show_default=True, help="True tokens in each tree.")
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "bfloat16"]),
    help="In bfloat16 an answer may leave the recorded one by rounding, and the oracle is wrong from there on.",
)
def main(levels: tuple[int, ...], turns: int, tokens: int, depth: int, dtype: str) -> None:
    head = shipped_directory(BUILT_IN_MODEL)
    assert head is not None
    replica, engine = started_engine(VerifierSettings(model=BUILT_IN_MODEL, head=str(head), dtype=dtype))
    budget = engine.budget
    assert isinstance(budget, AdaptiveBudget)
    client = EngineClient(engine)
    report = []
    with tqdm(total=len(levels) * turns, unit="turn", disable=None) as bar:
        for level in levels:
            prompts = text_windows(replica, level)
            truths = [answer.tokens for answer in client.answers(prompts, tokens)]
            chains = true_chains(truths, depth)
            client.answers(prompts, tokens, candidates=chains)
            plain: list[float] = []
            oracle: list[float] = []
            drafts: list[float] = []
            rounds = committed = 0
            for turn in range(turns):
                for rates, candidates in ((plain, None), (oracle, chains))[:: 1 if turn % 2 == 0 else -1]:
                    answers = client.answers(prompts, tokens, candidates=candidates)
                    # First tokens come with the prompt.
                    rates.append((sum(len(answer.tokens) for answer in answers) - level) / client.seconds)
                    rounds += sum(answer.rounds for answer in answers)
                    committed += sum(answer.committed for answer in answers)
                drafts.append(engine.load.draft_ms)
                bar.update()
            cost = budget.cost
            draft_ms = statistics.median(drafts)
            spent = float(cost.pass_ms((1 + depth) * level)) + draft_ms
            predicted = (1 + depth) * float(cost.pass_ms(level)) / spent
            ratio = statistics.median(b / a for a, b in zip(plain, oracle, strict=True))
            report.append(
                {
                    "sessions": level,
                    "plain_tokens_per_s": round(statistics.median(plain), 1),
                    "oracle_tokens_per_s": round(statistics.median(oracle), 1),
                    "ratio": round(ratio, 3),
                    "predicted": round(predicted, 3),
                    "share": round((ratio - 1) / (predicted - 1), 3) if predicted > 1.02 else None,
                    "mean_committed": round(committed / rounds, 2) if rounds else None,
                    "draft_ms": round(draft_ms, 2),
                }
            )
    engine.stop()
    print(json.dumps({"dtype": dtype, "tokens": tokens, "depth": depth, "levels": report}))


if __name__ == "__main__":
    main()
