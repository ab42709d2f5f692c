"""A stack of fake services: started together, stopped together, and what is said when one does not work."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import psutil
import pytest

from dartspec.cli import stack as stack_module
from dartspec.cli.process import Process
from dartspec.cli.progress import Progress
from dartspec.cli.stack import running_stack
from dartspec.cli.stack_programs import gateway_program, ngram_program, threads_of, verifier_program
from dartspec.cli.stack_settings import StackSettings
from dartspec.services.common.errors import FailedPrecondition, InternalError
from tests.unit.cli.fake_stack import fake_programs

NO_INDEX = StackSettings(index="none")


@pytest.fixture
def pids(monkeypatch) -> list[int]:
    """Process ids of every service that a stack of this test starts; the services are fakes."""
    for name, function in fake_programs().items():
        monkeypatch.setattr(stack_module, name, function)
    started: list[int] = []
    real = Process.__init__

    def remember(self, name, child, on_line):
        started.append(child.pid)
        real(self, name, child, on_line)

    monkeypatch.setattr(Process, "__init__", remember)
    return started


async def test_addresses_description_and_nothing_left_behind(pids):
    output = io.StringIO()
    async with running_stack(StackSettings(index="none", replicas=2), progress=Progress(output)) as stack:
        assert len(stack.verifiers) == 2
        assert stack.gateway.startswith("unix:")
        assert stack.ngram is None
        assert stack.target.model == "fake"
        assert str(stack.target) == "fake (llama), float32 on cpu, context 128, draft head of 8 positions"
        sockets = Path(stack.gateway.removeprefix("unix:")).parent
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert len(pids) == 3
        assert all(psutil.pid_exists(pid) for pid in pids)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not sockets.exists()
    said = output.getvalue()
    for name in ("verifier-0", "verifier-1", "gateway"):
        assert f"{name}: starting" in said
        assert f"{name}: ready on" in said


async def test_gateway_listens_where_it_is_told(pids):
    async with running_stack(NO_INDEX, listen=["127.0.0.1:0"], progress=Progress(io.StringIO())) as stack:
        host, _, port = stack.gateway.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0


async def test_a_service_that_refuses_stops_the_others_and_says_why(pids, monkeypatch):
    monkeypatch.setenv("FAKE_GATEWAY", "refuse")
    with pytest.raises(
        FailedPrecondition, match=r"gateway stopped \(exit code 2\) while starting: model: no directory"
    ):
        async with running_stack(NO_INDEX, progress=Progress(io.StringIO())):
            pytest.fail("the stack must not start")
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_a_service_that_dies_is_reported(pids, monkeypatch, tmp_path):
    crash = tmp_path / "crash"
    monkeypatch.setenv("FAKE_VERIFIER", f"crash:{crash}")
    async with running_stack(NO_INDEX, progress=Progress(io.StringIO())) as stack:
        waiting = asyncio.create_task(stack.services.next_failure())
        await asyncio.sleep(0)
        assert not waiting.done()
        crash.touch()
        name, error = await asyncio.wait_for(waiting, 20)
        again = asyncio.create_task(stack.services.next_failure())
        await asyncio.wait([again], timeout=0.1)
        assert not again.done()  # each is told once
        again.cancel()
    assert name == "verifier"
    assert isinstance(error, InternalError)
    assert error.message == "verifier stopped (exit code 1) while serving: verifier lost its mind"


async def test_cancelling_a_start_leaves_nothing_behind(pids, monkeypatch):
    async def start() -> None:
        async with running_stack(NO_INDEX, progress=Progress(io.StringIO())):
            await asyncio.sleep(60)

    task = asyncio.create_task(start())
    async with asyncio.timeout(20):
        while not pids:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_command_lines():
    settings = StackSettings(
        model="m",
        revision="r",
        head="h",
        device="cuda:0,cuda:1",
        replicas=3,
        threads=4,
        budget="fixed:8",
        invariant="on",
    )
    program = verifier_program(settings, 2, "unix:/v", dtype="bfloat16", threads=4)
    assert program.name == "verifier-2"
    assert program.arguments == (
        *("verifier", "serve", "--listen", "unix:/v", "--log-level", "info", "--model", "m", "--dtype", "bfloat16"),
        *(
            "--device",
            "cuda:0",
            "--revision",
            "r",
            "--head",
            "h",
            "--threads",
            "4",
            "--budget",
            "fixed:8",
            "--invariant",
            "on",
        ),
    )
    assert gateway_program(settings, ["a:1", "unix:/g"], ["unix:/v"], "unix:/n", "dart").arguments == (
        *("gateway", "serve", "--log-level", "info", "--mode", "dart", "--listen", "a:1", "--listen", "unix:/g"),
        *("--verifier", "unix:/v", "--ngram", "unix:/n"),
    )
    with_http = gateway_program(settings, ["a:1"], ["unix:/v"], None, "auto", "a:2").arguments
    assert with_http[with_http.index("--http-listen") + 1] == "a:2"
    assert "--ngram" not in gateway_program(settings, ["a:1"], ["unix:/v"], None, "auto").arguments
    assert ngram_program(settings, "/i.ngx", "unix:/n").arguments == (
        *("ngram", "serve", "--listen", "unix:/n", "--log-level", "info", "--index", "/i.ngx"),
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (StackSettings(), None),
        (StackSettings(threads=3, replicas=2), 3),
        (StackSettings(replicas=2), 4),
        (StackSettings(replicas=16), 1),
        (StackSettings(replicas=2, device="cuda"), None),
    ],
)
def test_replicas_on_one_processor_share_its_cores(settings, expected):
    assert threads_of(settings, cores=8) == expected
