"""A loop that cannot be made is none, said aloud only when that is strange."""

from __future__ import annotations

import pytest

from dartspec.services.verifier.optional_loop import loop_or_none


def test_what_cannot_be_compiled_is_none(caplog: pytest.LogCaptureFixture) -> None:
    def missing() -> None:
        raise ImportError("no numba")

    def broken() -> None:
        raise RuntimeError("no such processor")

    assert loop_or_none(lambda: 7, "things are done") == 7
    assert loop_or_none(missing, "things are done") is None
    assert caplog.text == ""
    assert loop_or_none(broken, "things are done") is None
    assert "things are done without compiled loops: RuntimeError: no such processor" in caplog.text
