"""For all tests."""

import signal

# A test run that a shell put into the background ignores SIGINT, and processes inherit that; those that tests start and
# interrupt must not.
signal.signal(signal.SIGINT, signal.default_int_handler)
