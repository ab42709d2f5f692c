"""Parquet files: a column of texts, of chat messages, or of lists of ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dartspec.services.common.errors import FailedPrecondition, InvalidArgument
from dartspec.services.ngram.inputs import Reading, Source

_ROWS = 256


def read_column(source: Source, reading: Reading, skip: int) -> Iterator[tuple[int, Any, int]]:
    """(number, value, bytes read) of the rows that this job takes, after the first ``skip``."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise FailedPrecondition(f"{source.path} needs pyarrow; install dartspec[parquet]") from error
    try:
        with pyarrow.parquet.ParquetFile(source.path) as file:
            names = file.schema_arrow.names
            if reading.field not in names:
                message = f"{source.path} has no column `{reading.field}`, only {', '.join(names) or 'nothing'}"
                raise InvalidArgument("--field", message)
            rows, number = max(file.metadata.num_rows, 1), 0
            for batch in file.iter_batches(batch_size=_ROWS, columns=[reading.field]):
                column = batch.column(0)
                for i in range(len(column)):
                    if number >= skip and reading.takes(source.number, number):
                        yield number, column[i].as_py(), source.bytes * (number + 1) // rows
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidArgument("inputs", f"{source.path} is not a Parquet file: {error}") from error
