"""Typed access to a JSON object from outside. Ranges are the rules' business, kinds are checked here.

null is the same as absent everywhere, as in that API.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Any

from dartspec.services.common.errors import InvalidArgument


def parse(body: bytes) -> dict[str, Any]:
    """The body's JSON object. Raises InvalidArgument for anything else, NaN and infinities included."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except RecursionError as error:
        raise InvalidArgument("body", "is nested too deeply") from error
    except ValueError as error:  # bad UTF-8 is one too
        raise InvalidArgument("body", f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidArgument("body", f"must be a JSON object, got {kind(value)}")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def kind(value: Any) -> str:
    """What JSON calls the value's type."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def string(name: str, value: Any) -> str:
    """A string of characters that UTF-8 can carry."""
    if not isinstance(value, str):
        raise InvalidArgument(name, f"must be a string, got {kind(value)}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidArgument(name, "holds half of a surrogate pair, which is no character")
    return value


def integer(name: str, value: Any, low: int, high: int) -> int:
    """An integer that the field can carry."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # as clients write that have no integers
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(name, f"must be an integer, got {kind(value)}")
    if not low <= value <= high:
        raise InvalidArgument(name, f"must be between {low} and {high}, got {value}")
    return value


def number(name: str, value: Any) -> float:
    """A finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidArgument(name, f"must be a number, got {kind(value)}")
    try:
        converted = float(value)
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise InvalidArgument(name, "is too large")
    return converted


class Fields:
    """A JSON object whose fields are taken one by one; what nobody takes is refused by `end`."""

    def __init__(self, values: dict[str, Any], prefix: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._prefix = prefix

    def name(self, field: str) -> str:
        """The field's full name, as errors give it."""
        return f"{self._prefix}.{field}" if self._prefix else field

    def has(self, field: str) -> bool:
        """Whether it is there, still to be taken."""
        return field in self._values

    def take(self, field: str) -> Any:
        """The value as it came; None when absent."""
        return self._values.pop(field, None)

    def string(self, field: str, default: str = "") -> str:
        """The default when absent."""
        return string(self.name(field), self.take(field)) if self.has(field) else default

    def flag(self, field: str) -> bool:
        """A boolean; false when absent."""
        value = self.take(field)
        if value is not None and not isinstance(value, bool):
            raise InvalidArgument(self.name(field), f"must be true or false, got {kind(value)}")
        return bool(value)

    def integer(self, field: str, low: int, high: int) -> int | None:
        """None when absent."""
        return integer(self.name(field), self.take(field), low, high) if self.has(field) else None

    def number(self, field: str) -> float | None:
        """None when absent."""
        return number(self.name(field), self.take(field)) if self.has(field) else None

    def array(self, field: str) -> list[Any]:
        """Empty when absent."""
        value = self.take(field)
        if value is not None and not isinstance(value, list):
            raise InvalidArgument(self.name(field), f"must be an array, got {kind(value)}")
        return value or []

    def object(self, field: str) -> dict[str, Any]:
        """Empty when absent."""
        value = self.take(field)
        if value is not None and not isinstance(value, dict):
            raise InvalidArgument(self.name(field), f"must be an object, got {kind(value)}")
        return value or {}

    def ignore(self, fields: Collection[str]) -> None:
        """Fields that change nothing about an answer."""
        for field in fields:
            self.take(field)

    def only(self, field: str, neutral: Collection[Any], why: str) -> None:
        """A field of the API that is not supported: values that ask for nothing pass, others are refused."""
        value = self.take(field)
        if value is not None and value not in neutral:
            raise InvalidArgument(self.name(field), f"{why}; leave the field out")

    def end(self) -> None:
        """Refuse what is left: a field that is not known here may have been meant to change the answer."""
        for field in self._values:
            raise InvalidArgument(self.name(field), "is not a field that this server knows")
