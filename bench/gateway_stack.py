"""Gateways over synthetic verifiers as real processes: what the gateway's benchmarks measure."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.synthetic_verifier.model import TOKENIZER
from dartspec.cli.process import Process, Program

# What the index of a stack with an ngram service counts; answers are letters at random, so look-ups rarely find more.
CORPUS = "the quick brown fox jumps over the lazy dog and then some other words follow it into the wood "


@dataclass(frozen=True)
class Layout:
    """Which processes to start. speeds: one replica each, all in one process unless ``processes`` says more.

    verifier: options of the synthetic verifiers. gateway: options of the gateways. ngram: whether there is one; without
    it the verifiers' own chains are verified.
    """

    speeds: tuple[float, ...] = (1.0,)
    processes: int = 1
    gateways: int = 1
    ngram: bool = False
    http: bool = False
    verifier: tuple[str, ...] = ()
    gateway: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyntheticStack:
    """A running layout. gateways: addresses; http: URLs; processes: of the gateways."""

    gateways: tuple[str, ...]
    http: tuple[str, ...]
    verifiers: tuple[str, ...]
    processes: tuple[psutil.Process, ...]

    def cpu_seconds(self) -> float:
        """Processor time of all gateways so far."""
        times = [process.cpu_times() for process in self.processes]
        return sum(one.user + one.system for one in times)

    def resident_mb(self) -> float:
        """Resident memory of the largest gateway, in MiB."""
        return max(process.memory_info().rss for process in self.processes) / 2**20


@asynccontextmanager
async def synthetic_stack(layout: Layout) -> AsyncIterator[SyntheticStack]:
    """Start the processes, all on Unix sockets; they end with the block."""
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="dartspec-bench-", dir="/tmp")))

        async def start(name: str, argv: Sequence[str]) -> tuple[list[str], int]:
            process = await Process.start(name, argv, lambda line, passing: print(f"{name}: {line}", file=sys.stderr))
            exits.push_async_callback(process.stop)
            return await process.ready(), process.pid

        verifiers = await _start_verifiers(layout, folder, start)
        options = [f"--verifier={address}" for address in verifiers]
        if layout.ngram:
            index = await asyncio.to_thread(_index, folder)
            argv = Program("ngram", ("ngram", "serve", "--index", str(index), f"--listen=unix:{folder}/n.sock")).argv
            options.append(f"--ngram={(await start('ngram', argv))[0][0]}")
        if layout.http:
            options.append("--http-listen=127.0.0.1:0")
        gateways, urls, processes = [], [], []
        for number in range(layout.gateways):
            listen = f"--listen=unix:{folder}/g{number}.sock"
            arguments = ("gateway", "serve", listen, "--log-level=warning", *options, *layout.gateway)
            addresses, pid = await start(f"gateway-{number}", Program("gateway", arguments).argv)
            gateways.append(addresses[0])
            urls += [address for address in addresses if address.startswith("http://")]
            processes.append(psutil.Process(pid))
        yield SyntheticStack(tuple(gateways), tuple(urls), tuple(verifiers), tuple(processes))


async def _start_verifiers(layout: Layout, folder: Path, start) -> list[str]:  # type: ignore[no-untyped-def]
    addresses = []
    for number in range(layout.processes):
        argv = [sys.executable, "-m", "bench.synthetic_verifier", f"--parent={os.getpid()}", *layout.verifier]
        for index, speed in enumerate(layout.speeds):
            if index % layout.processes == number:
                argv += [f"--listen=unix:{folder}/v{index}.sock", f"--speed={speed}"]
        addresses += (await start(f"verifiers-{number}", argv))[0]
    return addresses


def _index(folder: Path) -> Path:
    """An index of a few sentences in the synthetic verifiers' tokens."""
    import subprocess

    text, tokenizer, index = folder / "corpus.txt", folder / "tokenizer.json", folder / "corpus.ngx"
    text.write_text(CORPUS * 200)
    TOKENIZER.save(str(tokenizer))
    build = ["ngram", "build", str(text), "-o", str(index), "--tokenizer", str(tokenizer)]
    subprocess.run([sys.executable, "-m", "dartspec.cli.main", *build], check=True, capture_output=True)
    return index
