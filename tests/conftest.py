"""For all tests."""

import os
import signal

import pytest

# Where several processes share the tests, each of them and what it starts has a core to itself.
if os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A test run that a shell put into the background ignores SIGINT, and processes inherit that; those that tests start and
# interrupt must not.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Parts with the longest files. They come first, so that processes that share the tests end at about the same time.
LONGEST = ("integration", "verifier", "draft", "ngram")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order of `LONGEST`, then the rest as it was."""
    items.sort(key=lambda item: next((n for n, part in enumerate(LONGEST) if part in item.path.parts), len(LONGEST)))
