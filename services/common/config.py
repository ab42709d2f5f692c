"""One declaration per setting: a frozen dataclass field gives the default, the flag, the variable and the help.

    @dataclass(frozen=True)
    class Settings:
        port: int = setting(7010, "TCP port; 0 chooses a free one.", check=between(0, 65535))

    @click.command()
    @options(Settings, "DARTSPEC_NGRAM")
    def serve(settings: Settings) -> None: ...

A wrong value ends the command with exit code 2 and the setting's name before anything starts.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import types
import typing
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

Check = Callable[[Any], str | None]
T = TypeVar("T")


def setting(default: Any, help: str, *, check: Check | None = None, choices: Sequence[str] | None = None) -> Any:
    """A dataclass field that is also a command line option. ``check`` returns what is wrong, or None."""
    metadata = {"help": help, "check": check, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


def between(low: float, high: float) -> Check:
    """A check that low <= value <= high (NaN fails)."""

    def check(value: float) -> str | None:
        return None if low <= value <= high else f"must be between {low} and {high}, got {value}"

    return check


def address_problem(value: str) -> str | None:
    """What is wrong with an address, which is "host:port" or "unix:/path"; None when nothing is."""
    if value.startswith("unix:"):
        return None if value.removeprefix("unix:") else 'an address is "host:port" or "unix:/path", the path is missing'
    host, _, port = value.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return f'an address is "host:port" or "unix:/path", got {value!r}'
    return None if int(port) <= 65535 else f"a port is at most 65535, got {port}"


def addresses(values: Sequence[str]) -> str | None:
    """A check that every value is an address."""
    return next((problem for value in values if (problem := address_problem(value))), None)


def tcp_address(value: str) -> str | None:
    """A check that the value is "host:port" or empty."""
    if value.startswith("unix:"):
        return f'must be "host:port", got {value!r}'
    return address_problem(value) if value else None


def redis_url(value: str) -> str | None:
    """A check that the value is empty or a URL of Redis, and that the client package is there."""
    if not value:
        return None
    scheme, _, place = value.partition("://")
    try:
        parts = urllib.parse.urlsplit(value)
        good = place.startswith("/") if scheme == "unix" else parts.hostname and parts.port != 0
    except ValueError:  # of the port
        good = False
    if scheme not in ("redis", "rediss", "unix") or not good:
        return "must be redis://HOST:PORT, rediss://HOST:PORT (TLS) or unix:///path"
    if importlib.util.find_spec("redis") is None:
        return "needs the package redis, which is not installed: pip install 'dartspec[redis]'"
    return None


def flag_name(field_name: str) -> str:
    """``max_nodes`` -> ``--max-nodes``."""
    return "--" + field_name.replace("_", "-")


def validate(settings: Any) -> None:
    """Run the checks of every field. Raises click.BadParameter naming the flag."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        check = field.metadata.get("check")
        problem = check(value) if check is not None and value is not None else None
        if problem:
            raise click.BadParameter(problem, param_hint=f"'{flag_name(field.name)}'")


def options(
    cls: type[T], env_prefix: str, argument: str = "settings"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a click command with one option a field of ``cls``; the function gets an instance as ``argument``.

    Field types: str, int, float, bool (``--x/--no-x``), Path, any of them or None, and tuples of str (repeatable).
    """
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            values = {field.name: kwargs.pop(field.name) for field in fields}
            settings = cls(**values)
            validate(settings)
            return function(*args, **{argument: settings}, **kwargs)

        for field in reversed(fields):
            run = _option(field, hints[field.name], env_prefix)(run)
        return run

    return decorate


def _option(field: dataclasses.Field[Any], hint: Any, env_prefix: str) -> Callable[[Any], Any]:
    multiple = typing.get_origin(hint) is tuple
    if multiple or typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg not in (type(None), Ellipsis))
    flag = flag_name(field.name)
    if hint is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    kind: Any = {str: str, int: int, float: float, bool: bool, Path: click.Path(path_type=Path)}[hint]
    if field.metadata["choices"]:
        kind = click.Choice(field.metadata["choices"])
    return click.option(
        flag,
        field.name,
        type=kind,
        default=field.default,
        multiple=multiple,
        help=field.metadata["help"],
        envvar=f"{env_prefix}_{field.name.upper()}",
        show_envvar=True,
        show_default=field.default not in (None, (), ""),
    )
