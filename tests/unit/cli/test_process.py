"""Child processes: ready lines, last words, and no survivors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import psutil
import pytest

from dartspec.cli.process import Process, Program
from dartspec.services.common.errors import FailedPrecondition, InternalError

SERVE = """
import signal, sys, time
print('noise'); print('dartspec x ready on unix:/a 127.0.0.1:1', flush=True)
print('a log line', file=sys.stderr, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('dartspec x ready on a:1', flush=True)
time.sleep(60)
"""
REFUSE = """
import sys
print('log', file=sys.stderr); print('error: model: no such thing', file=sys.stderr); sys.exit(2)
"""
WITH_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
print(child.pid, file=sys.stderr, flush=True)
print('dartspec x ready on a:1', flush=True)
child.wait()
"""


async def start(source: str, lines: list[str] | None = None) -> Process:
    heard = lines if lines is not None else []
    return await Process.start(
        "thing", [sys.executable, "-c", source], lambda line, passing: None if passing else heard.append(line)
    )


async def until(condition, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_ready_line_gives_all_addresses_and_stop_is_graceful():
    lines: list[str] = []
    process = await start(SERVE, lines)
    assert await process.ready() == ["unix:/a", "127.0.0.1:1"]
    await until(lambda: lines)
    assert lines == ["a log line"]
    assert await process.stop() == 0
    assert not process.running


async def test_what_ignores_sigterm_is_killed_after_the_grace():
    process = await start(STUBBORN)
    await process.ready()
    assert await process.stop(grace=0.1) == -signal.SIGKILL


async def test_stop_takes_along_what_the_service_started():
    lines: list[str] = []
    process = await start(WITH_CHILD, lines)
    await process.ready()
    await until(lambda: lines)
    grandchild = int(lines[0])
    assert not gone(grandchild)
    await process.stop(grace=0.1)
    await until(lambda: gone(grandchild))


@pytest.mark.parametrize(
    ("source", "kind", "message", "tail"),
    [
        (
            REFUSE,
            FailedPrecondition,
            "thing stopped (exit code 2) while starting: model: no such thing",
            [],
        ),
        (
            "import sys; print('loading\\rmore', file=sys.stderr); raise ValueError('odd')",
            InternalError,
            "thing stopped (exit code 1) while starting: ValueError: odd",
            ["more"],
        ),
        ("pass", InternalError, "thing stopped (exit code 0) while starting, without a word on stderr", []),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            InternalError,
            "thing was killed by SIGKILL while starting, without a word on stderr",
            [],
        ),
        (
            "import os, signal, sys; print('INFO all well', file=sys.stderr); os.kill(os.getpid(), signal.SIGKILL)",
            InternalError,
            "thing was killed by SIGKILL while starting",
            ["INFO all well"],
        ),
    ],
)
async def test_an_early_end_says_what_mattered(source, kind, message, tail):
    process = await start(source)
    with pytest.raises(kind) as caught:
        await process.ready()
    assert caught.value.message == message
    assert process.log_tail()[: len(tail)] == tail
    await process.stop()


async def test_a_child_does_not_outlive_a_killed_parent(tmp_path):
    """The parent is killed with SIGKILL, which it cannot catch; its service must be gone soon after."""
    ready = tmp_path / "pid"
    service = (
        "import os, sys, time; sys.argv = ['child', {parent}, '--version'];"
        "from dartspec.cli.child import end_with_parent; end_with_parent({parent});"
        f"open({str(ready)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent_source = (
        "import os, subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-c', {service!r}.replace('{{parent}}', str(os.getpid()))]);"
        "time.sleep(60)"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", parent_source)
    try:
        await until(lambda: ready.exists() and ready.read_text())
        child = int(ready.read_text())
        assert not gone(child)
    finally:
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
    await until(lambda: gone(child))


async def test_a_child_whose_parent_is_gone_already_ends_at_once():
    grandparent = str(os.getppid())
    argv = [sys.executable, "-m", "dartspec.cli.child", grandparent, "--version"]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 1
    assert out == b""


def test_program_names_this_process_as_the_parent():
    argv = Program("x", ("ngram", "serve")).argv
    assert argv == [sys.executable, "-m", "dartspec.cli.child", str(os.getpid()), "ngram", "serve"]


async def test_cancelling_ready_leaves_the_process_stoppable():
    process = await start("import time; time.sleep(60)")
    waiting = asyncio.create_task(process.ready())
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert process.running
    assert await process.stop() == -signal.SIGTERM
