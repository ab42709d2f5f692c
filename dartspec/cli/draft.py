"""`dartspec draft`: from a target and prompts to a head, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping

import click

from dartspec.cli.lazy import Lazy, LazyGroup

COMMANDS: Mapping[str, Lazy] = {
    "generate": Lazy("dartspec.services.verifier.draft_command:generate", "Let a target write texts to train on."),
    "check-leaks": Lazy(
        "dartspec.services.draft.texts.check_command:check_leaks", "Say which texts hold an evaluation prompt."
    ),
    "train": Lazy("dartspec.services.draft.train.command:train", "Train a head on texts that the target wrote."),
    "eval": Lazy("dartspec.cli.draft_eval:evaluate", "Hit rates of a head, and what tree search commits with it."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def draft() -> None:
    """Make a draft head: let the target write text, train on it, evaluate what came of it."""
