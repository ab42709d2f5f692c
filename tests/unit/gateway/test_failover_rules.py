"""When a request goes on elsewhere, with a clock that the test sets."""

from __future__ import annotations

import pytest

from dartspec.gateway.failover import Failover
from dartspec.services.common.errors import (
    DeadlineExceeded,
    Evicted,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)

NONE = Unavailable("none left")


def test_before_the_first_token_each_verifier_is_tried_once() -> None:
    failover = Failover(10.0, begun=False)
    first = ResourceExhausted("full", retry_after_ms=300)
    failover.failed("a", first, 0.0)
    assert failover.avoid == {"a"}
    failover.failed("b", Evicted("evicted"), 0.1)
    assert failover.avoid == {"a", "b"}
    with pytest.raises(Evicted):
        failover.none_left(NONE, 0.1)


def test_with_nobody_to_begin_with_the_fleets_own_error_is_raised() -> None:
    with pytest.raises(Unavailable, match="none left"):
        Failover(10.0, begun=False).none_left(NONE, 0.0)


def test_an_answer_that_has_begun_waits_until_its_patience_ends() -> None:
    failover = Failover(10.0, begun=False)
    failover.progressed()
    failover.failed("a", Unavailable("lost"), 5.0)
    assert failover.none_left(NONE, 5.0) == 0.1
    assert failover.avoid == set()
    failover.failed("a", ResourceExhausted("full", retry_after_ms=400), 9.0)
    assert failover.none_left(NONE, 14.5) == 0.4
    with pytest.raises(ResourceExhausted):
        failover.none_left(NONE, 15.0)


def test_progress_begins_the_patience_anew() -> None:
    failover = Failover(10.0, begun=True)
    failover.failed("a", Unavailable("lost"), 0.0)
    failover.progressed()
    assert failover.avoid == set()
    failover.failed("b", Unavailable("lost"), 20.0)
    assert failover.none_left(NONE, 29.0) == 0.1


def test_an_evicted_answer_may_go_back() -> None:
    failover = Failover(10.0, begun=True)
    failover.failed("a", Evicted("idle"), 0.0)
    assert failover.avoid == set()
    failover.failed("a", Evicted("idle"), 0.1)  # no progress in between
    assert failover.avoid == {"a"}


@pytest.mark.parametrize(
    "error", [InvalidArgument("verify.n", "wrong"), FailedPrecondition("no"), DeadlineExceeded("late")]
)
def test_what_every_verifier_would_say_is_raised_at_once(error: Exception) -> None:
    with pytest.raises(type(error)):
        Failover(10.0, begun=True).failed("a", error, 0.0)  # type: ignore[arg-type]


def test_an_internal_error_is_tried_on_one_other_verifier() -> None:
    failover = Failover(10.0, begun=True)
    failover.failed("a", InternalError("broken"), 0.0)
    assert failover.avoid == {"a"}
    with pytest.raises(InternalError):
        failover.failed("b", InternalError("broken"), 0.1)
    alone = Failover(10.0, begun=True)
    alone.failed("a", InternalError("broken"), 0.0)
    with pytest.raises(InternalError):
        alone.none_left(NONE, 0.0)
