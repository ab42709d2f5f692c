"""Classes of concurrency: numbers of sessions that are treated alike; what is known of one holds for all. Pure."""

from __future__ import annotations


def concurrency_class(sessions: int) -> int:
    """1, 2, 3-5, 6-11, 12-23, ... sessions are classes 1, 2, 3, 4, 5, ...; none is 0.

    Powers of two, which limits on clients often are, lie inside of their classes: a session that ends or reads its
    prompt does not change the class of the others.
    """
    return (4 * sessions // 3).bit_length()
