"""`dartspec up` as a process, with fake services: signals, ports, failures."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from dartspec.cli.up import _fatal_failure, _own_command
from dartspec.services.common.errors import InternalError
from tests.unit.cli.command import dartspec

READY_SECONDS = 30


async def start_up(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.cli.fake_stack", "up", "--index", "none", "--http-listen", "", *arguments),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ready_address(process: asyncio.subprocess.Process) -> str:
    line = await asyncio.wait_for(process.stdout.readline(), READY_SECONDS)
    start, _, address = line.decode().strip().rpartition(" ")
    assert start == "dartspec up ready on"
    return address


async def until_gone(children: list[psutil.Process]) -> None:
    async with asyncio.timeout(10):
        while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_signals_stop_everything_with_exit_code_0(signum):
    process = await start_up("--listen", "127.0.0.1:0")
    address = await ready_address(process)
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    process.send_signal(signum)
    _, err = await process.communicate()
    assert process.returncode == 0
    assert "gateway: gateway stopped" in err.decode()  # it ended by itself, not by SIGKILL
    assert f"--gateway {address}" in err.decode()
    await until_gone(children)


async def test_no_service_outlives_a_killed_up():
    process = await start_up("--listen", "127.0.0.1:0")
    await ready_address(process)
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    (socket_path,) = (part for part in children[0].cmdline() if part.startswith("unix:"))
    process.kill()
    await process.wait()
    await until_gone(children)
    shutil.rmtree(Path(socket_path.removeprefix("unix:")).parent)  # what a killed process cannot remove


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_while_starting(signum, code):
    process = await start_up("--listen", "127.0.0.1:0")
    line = await asyncio.wait_for(process.stderr.readline(), READY_SECONDS)
    assert line.decode().startswith("verifier: starting")
    process.send_signal(signum)
    _, err = await process.communicate()
    assert process.returncode == code
    assert b"Traceback" not in err


async def test_a_service_that_refuses_gives_its_own_words_and_code_2():
    process = await start_up("--listen", "127.0.0.1:0", FAKE_VERIFIER="refuse")
    out, err = await process.communicate()
    assert process.returncode == 2
    assert out == b""
    last = err.decode().splitlines()[-1]
    assert last == "error: verifier stopped (exit code 2) while starting: model: no directory /nowhere"


async def test_a_service_that_dies_later_ends_the_stack(tmp_path):
    crash = tmp_path / "crash"
    process = await start_up("--listen", "127.0.0.1:0", FAKE_GATEWAY=f"crash:{crash}")
    await ready_address(process)
    crash.touch()
    _, err = await process.communicate()
    assert process.returncode == 1
    assert "error: gateway stopped (exit code 1) while serving: gateway lost its mind" in err.decode()


async def test_a_verifier_that_dies_leaves_the_stack_to_the_others():
    process = await start_up("--listen", "127.0.0.1:0", "--replicas", "2")
    await ready_address(process)
    children = psutil.Process(process.pid).children()
    first, second = (child for child in children if any("verifier-" in part for part in child.cmdline()))
    first.kill()
    async with asyncio.timeout(READY_SECONDS):
        while b"warning: " not in (line := await process.stderr.readline()):
            assert line, "no warning before the end"
    assert re.fullmatch(
        r"warning: verifier-\d was killed by SIGKILL while serving.*; verifiers that still run: 1",
        line.decode().strip(),
    )
    assert process.returncode is None
    second.kill()
    _, err = await process.communicate()
    assert process.returncode == 1
    assert re.search(r"^error: verifier-\d was killed by SIGKILL while serving", err.decode(), re.MULTILINE)
    await until_gone(children)


async def test_an_ngram_that_dies_does_not_end_the_stack(capsys):
    class Scripted:
        failures: ClassVar = [("ngram", InternalError("ngram died")), ("gateway", InternalError("gateway died"))]

        async def next_failure(self):
            return self.failures.pop(0)

    error = await _fatal_failure(Scripted(), verifiers=1)
    assert error.message == "gateway died"
    assert capsys.readouterr().err == "warning: ngram died; the verifier's own chains stand in\n"


@pytest.mark.parametrize(
    ("called", "said"),
    [
        (".venv/bin/dartspec", ".venv/bin/dartspec"),
        ("/a b/dartspec", "'/a b/dartspec'"),
        ("/usr/bin/dartspec", "dartspec"),  # the one that the shell finds
        ("/site-packages/dartspec/cli/main.py", "dartspec"),
    ],
)
def test_the_hint_calls_the_command_as_it_was_called(monkeypatch, called, said):
    monkeypatch.setattr(sys, "argv", [called, "up"])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert _own_command() == said


async def test_a_port_in_use_is_said_before_anything_starts():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        for flag, others in (("--listen", ()), ("--http-listen", ("--listen", "127.0.0.1:0"))):
            result = await dartspec("up", *others, flag, address)
            assert result.code == 2
            assert result.err.startswith(f"error: {flag}: cannot listen on {address}: Address already in use")
            assert len(result.err.splitlines()) == 1


async def test_the_url_of_the_api_is_said():
    process = await start_up("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    await ready_address(process)
    process.send_signal(signal.SIGTERM)
    _, err = await process.communicate()
    assert "OpenAI-style API: http://127.0.0.1:0/v1" in err.decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "127.0.0.1:0", "--http-listen", "unix:/x"], '--http-listen: must be "host:port"'),
        (["--listen", "127.0.0.1:0", "--http-listen", "8000"], "--http-listen"),
        (["--listen", "7000"], "must be host:port or unix:/path, got '7000'"),
        (["--listen", "127.0.0.1:99999"], "must be host:port or unix:/path, got '127.0.0.1:99999'"),
        (["--replicas", "0"], "--replicas"),
        (["--dtype", "float16"], "--dtype"),
    ],
)
async def test_wrong_settings(arguments, said):
    result = await dartspec("up", *arguments)
    assert result.code == 2
    assert said in result.err
    assert len(result.err.splitlines()) == 1
