"""The passes before readiness: they fit into the memory that there is and leave nothing behind."""

from __future__ import annotations

import pytest

from dartspec.services.verifier import warmup
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.kv_cache import SLOT_BLOCK

from .tiny import MAX_NODES, tiny_decoder


@pytest.mark.parametrize(("units", "contexts"), [(2, [256]), (4, [256, 400]), (3, [256])])
def test_contexts_are_measured_as_far_as_there_is_memory(
    monkeypatch: pytest.MonkeyPatch, units: int, contexts: list[int]
) -> None:
    # A context of 256 and the rows behind it need one unit, one of 400 two that lie together at an even place.
    monkeypatch.setattr(warmup, "CONTEXTS", (256, 400, 4096))
    monkeypatch.setattr(warmup, "PROFILE_ROWS", 128)
    decoder = tiny_decoder()
    decoder.target.pool.limit = units * SLOT_BLOCK
    admission = Admission(8, units * SLOT_BLOCK, 600, MAX_NODES)
    table, draft_ms, shallow_ms = warmup.profile(decoder, admission)
    assert table.contexts.tolist()[1:] == contexts
    assert table.milliseconds.shape == (1 + len(contexts), len(table.rows))
    assert draft_ms > 0
    assert shallow_ms > 0
    assert (admission.sessions, admission.kv_used, decoder.target.pool.taken) == (0, 0, 0)
