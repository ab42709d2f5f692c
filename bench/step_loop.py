"""The step loop's own time beside the model: `python -m bench.step_loop`.

An engine in this process answers with so many sessions at a time, plainly or with the head's own chains, at several
ways of sampling. What a step takes outside the target's pass and the draft (packing, sampling, walking, moving rows,
messages) is its own time. There is KV memory for the sessions and a few kept prefixes, all of it used before: as in a
server that has been up for a while, whose new prefixes take the place of old ones. The last line is a JSON object with
`ways`: `drafts`, `sampling`, `step_ms`, `own_ms` (means) and `own_share`.
"""

from __future__ import annotations

import json
from typing import Any

import click
from tqdm import tqdm

from bench.engine_driver import PROMPT_TOKENS, EngineClient, own_chain, text_windows
from dartspec.cli.locations import BUILT_IN_MODEL, shipped_directory
from dartspec.services.common.types import Sampling
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.kv_cache import SLOT_BLOCK, rounded_capacity
from dartspec.services.verifier.offline import started_engine
from dartspec.services.verifier.replica import Replica
from dartspec.services.verifier.stats import Figures

BUDGET = 7
# Of prefixes that nobody holds any more: fewer than the sessions leave behind.
KEPT_POSITIONS = 2 * SLOT_BLOCK
SAMPLINGS = {
    "greedy": Sampling(0.0, 1),
    "temperature 0.8": Sampling(0.8, 1),
    "temperature 0.8, top-p 0.95": Sampling(0.8, 1, top_p=0.95),
    "temperature 0.8, top-k 50, repetition 1.1": Sampling(0.8, 1, top_k=50, repetition_penalty=1.1),
}


def spent(before: Figures, after: Figures) -> dict[str, float]:
    """Means of the steps between two readings: milliseconds of a step and of its own part, and the share."""
    seconds = {part: getattr(after, part).sum - getattr(before, part).sum for part in ("passes", "drafts", "own")}
    steps = sum(after.own.counts) - sum(before.own.counts)
    whole = sum(seconds.values())
    return {
        "steps": steps,
        "step_ms": round(1e3 * whole / steps, 2),
        "own_ms": round(1e3 * seconds["own"] / steps, 3),
        "own_share": round(seconds["own"] / whole, 4),
    }


def measure(replica: Replica, engine: Engine, sessions: int, tokens: int) -> list[dict[str, Any]]:
    """All ways, each after short answers that are not counted."""
    client, figures = EngineClient(engine), engine.stats.figures
    prompts = text_windows(replica, sessions)
    ways = [(drafts, name) for drafts in (False, True) for name in SAMPLINGS]
    for _ in range(2):
        client.answers(prompts, tokens)  # after which all memory has been written
    found: list[dict[str, Any]] = []
    for drafts, name in tqdm(ways, unit="way", disable=None):
        candidates = own_chain if drafts else None
        samplings = [SAMPLINGS[name]]
        client.answers(prompts, 4, candidates=candidates, forced=drafts, samplings=samplings)
        before = figures()
        client.answers(prompts, tokens, candidates=candidates, forced=drafts, samplings=samplings)
        found.append({"drafts": drafts, "sampling": name, **spent(before, figures())})
    return found


@click.command(help=__doc__)
@click.option("--sessions", type=click.IntRange(1, 256), default=16, show_default=True)
@click.option("--tokens", type=click.IntRange(8), default=48, show_default=True, help="Of each answer.")
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(["float32", "bfloat16"]))
def main(sessions: int, tokens: int, dtype: str) -> None:
    """Measure and print."""
    head = shipped_directory(BUILT_IN_MODEL)
    slot = rounded_capacity(PROMPT_TOKENS + tokens + BUDGET + 1)
    settings = VerifierSettings(
        model=BUILT_IN_MODEL,
        head=str(head),
        dtype=dtype,
        budget=f"fixed:{BUDGET}",
        max_sessions=sessions,
        kv_positions=sessions * slot + KEPT_POSITIONS,
    )
    replica, engine = started_engine(settings)
    ways = measure(replica, engine, sessions, tokens)
    click.echo(json.dumps({"dtype": dtype, "sessions": sessions, "tokens": tokens, "ways": ways}))


if __name__ == "__main__":
    main()
