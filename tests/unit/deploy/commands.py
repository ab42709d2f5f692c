"""Command lines of containers against the real commands: a flag, a variable or a value that is none fails."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from unittest import mock

import click

from dartspec.cli.main import dartspec as dartspec_group

PREFIX = "DARTSPEC_"


def parse(words: Sequence[str], environment: Mapping[str, object] | None = None) -> tuple[str, dict[str, object]]:
    """Parse the words after `dartspec`, its variables set as in ``environment``; gives command and values.

    Raises click.UsageError as the command would, and AssertionError for a variable that the command does not read.
    """
    words, command = list(words), dartspec_group
    context = click.Context(command, info_name="dartspec")
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"{context.command_path} has no command {name!r}"
        command = found
        context = click.Context(command, parent=context, info_name=name)
    ours = {name: str(value) for name, value in (environment or {}).items() if name.startswith(PREFIX)}
    unknown = set(ours) - {option.envvar for option in command.params if isinstance(option, click.Option)}
    assert not unknown, f"{context.command_path} does not read {sorted(unknown)}"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    with mock.patch.dict(os.environ, {**inherited, **ours}, clear=True):
        context = command.make_context(context.command_path, list(words))
    _check(command, context)
    return context.command_path, dict(context.params)


def _check(command: click.Command, context: click.Context) -> None:
    """What the command checks of values before it starts: it is stopped where it would do so."""
    with context, mock.patch("dartspec.services.common.config.importlib.util.find_spec", return_value=True):
        try:
            settings_checked(command, context)
        except _Checked:
            return


class _Checked(Exception):
    """The settings were good."""


def settings_checked(command: click.Command, context: click.Context) -> None:
    """Call the command up to the end of `validate`."""
    from dartspec.services.common import config

    real = config.validate

    def validate(settings: object) -> None:
        real(settings)
        raise _Checked

    with mock.patch.object(config, "validate", validate):
        if getattr(command.callback, "__wrapped__", None) is not None:
            context.invoke(command.callback, **context.params)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Text with Kubernetes' $(NAME) and the shell's $NAME replaced."""
    text = re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], text)
    return re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], "1"), text)


def shell_commands(script: str) -> list[list[str]]:
    """The dartspec commands of a shell script, as words after `dartspec`."""
    lines = script.replace("\\\n", " ").splitlines()
    words = [shlex.split(line.strip().removeprefix("exec ")) for line in lines if "dartspec " in line]
    return [each[1:] for each in words if each[0] == "dartspec"]
