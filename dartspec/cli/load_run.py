"""Runs the jobs of a load: open loop at their arrivals, or a closed loop of so many clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from dartspec.cli.load_plan import Job
from dartspec.cli.load_sample import Sample
from dartspec.cli.load_target import LoadTarget

SAMPLE_SECONDS = 0.2


@dataclass
class LoadRun:
    """What came of a run so far. seconds: of it. interrupted: Ctrl-C ended it before all jobs were done."""

    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    peak_mb: dict[int, float] = field(default_factory=dict)


async def run_load(
    target: LoadTarget, jobs: Sequence[Job], clients: int, pids: Sequence[int], on_done: Callable[[Sample], object]
) -> LoadRun:
    """Send every job: at its time, or with ``clients`` above 0 as soon as one of so many clients is free."""
    run = LoadRun()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    waiting = list(reversed(jobs))

    async def one(job: Job, due: float) -> None:
        sample = Sample(job.task, job.mode, late=loop.time() - due)
        run.samples.append(sample)
        await target.answer(job, sample, due)
        on_done(sample)

    async def at_its_time(job: Job) -> None:
        await asyncio.sleep(begin + job.at - loop.time())
        await one(job, begin + job.at)

    async def client() -> None:
        while waiting:
            await one(waiting.pop(), loop.time())

    memory = asyncio.create_task(_watch_memory(pids, run.peak_mb))
    work = [client() for _ in range(clients)] if clients else [at_its_time(job) for job in jobs]
    try:
        await asyncio.gather(*work)
    except asyncio.CancelledError:
        run.interrupted = True
    finally:
        memory.cancel()
        run.seconds = loop.time() - begin
    return run


async def _watch_memory(pids: Sequence[int], peak_mb: dict[int, float]) -> None:
    """Keep the largest resident memory of each process, in MiB; one that has ended keeps what it had."""
    while True:
        for pid in pids:
            try:
                resident = psutil.Process(pid).memory_info().rss / 2**20
            except psutil.Error:
                continue
            peak_mb[pid] = max(peak_mb.get(pid, 0.0), resident)
        await asyncio.sleep(SAMPLE_SECONDS)
