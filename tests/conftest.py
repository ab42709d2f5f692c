"""For all tests."""

import os
import signal

# Where several processes share the tests, each of them and what it starts has a core to itself.
if os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A test run that a shell put into the background ignores SIGINT, and processes inherit that; those that tests start and
# interrupt must not.
signal.signal(signal.SIGINT, signal.default_int_handler)
