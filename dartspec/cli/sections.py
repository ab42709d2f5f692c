"""Help with the options of one settings class under a heading of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import click


class SectionedCommand(click.Command):
    """A command whose help lists ``sections`` (heading to settings class) after its own options."""

    def __init__(self, *args: Any, sections: Mapping[str, type], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = {
            heading: {field.name for field in dataclasses.fields(settings)} for heading, settings in sections.items()
        }

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Own options first, then each section."""
        grouped = set().union(*self._sections.values())
        # Not the arguments, of which newer versions of click make empty records.
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        own = set(records) - grouped
        for heading, names in {"Options": own, **self._sections}.items():
            rows = [record for name, record in records.items() if name in names and record is not None]
            with formatter.section(heading):
                formatter.write_dl(rows)
