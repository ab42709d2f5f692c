"""Runs a dartspec command that ends when its parent does: `python -m dartspec.cli.child PARENT_PID COMMAND...`.

A stack started by `dartspec up` leaves no service behind, even when `up` is killed in a way that it cannot catch.
The child asks for this itself, because code between fork and exec is not safe in a parent that has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1  # linux/prctl.h
POLL_SECONDS = 1.0


def end_with_parent(parent_pid: int) -> None:
    """Have this process killed when the process `parent_pid` ends; ends at once if that has happened already."""
    if sys.platform == "linux":
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:
        sys.exit(1)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(POLL_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    from dartspec.cli.main import main  # a slow import, so only once the parent's end cannot be missed

    sys.exit(main(sys.argv[2:]))
