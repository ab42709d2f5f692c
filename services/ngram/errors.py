"""The extension's errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ngram_index

from dartspec.services.common.errors import FailedPrecondition, InvalidArgument


@contextmanager
def index_errors() -> Iterator[None]:
    """Turn NgramError into InvalidArgument (a bad argument) or FailedPrecondition (a bad file, address or disk)."""
    try:
        yield
    except ngram_index.NgramError as error:
        if error.code == "invalid_argument":
            raise InvalidArgument(error.field, str(error)) from error
        raise FailedPrecondition(str(error)) from error
