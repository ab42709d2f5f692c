"""`dartspec draft`: the commands of training, and `eval`, which needs more of the system than a head."""

from __future__ import annotations

import importlib

import click

from dartspec.cli.draft_eval import evaluate

# Imported when it is called, as every group of `main.SUBCOMMANDS`.
draft: click.Group = importlib.import_module("dartspec.services.verifier.draft_command").draft
draft.add_command(evaluate, "eval")
