"""Groups of commands that are imported when they are called: one command does not wait for the packages of another."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """A command that is not imported yet: "module:attribute", and its line in the group's help."""

    path: str
    help: str


class LazyGroup(click.Group):
    """A group that lists its commands without importing them."""

    def __init__(self, *args: Any, table: Mapping[str, Lazy], **options: Any) -> None:
        super().__init__(*args, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name].path.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table's own help lines."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self.table.items()])
