"""The ngram service as a Python client sees it: `python -m bench.index_service [--index FILE ...]`.

One service process holds the indexes (two synthetic ones of different tokenizers unless given), and asyncio callers
search one tree a call, each caller one call at a time, over the Unix socket and TCP, through one and several
connections; then again next to a process that copies memory without end. The client is one Python process: with many
callers it, not the service, is soon what limits the rate. The last line is a JSON object: `p50_us` (round trip of one
caller over the Unix socket), `calls_per_s` (the best of all runs), each run, the service's memory before and after,
and errors.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import click
import numpy as np
from tqdm import tqdm

from bench.index_process import MEGABYTE, memory_hog, resident, service
from bench.index_search import SEED, setting
from bench.rust_program import run_program
from bench.synthetic import make_index
from dartspec.services.common.channel import GRPC_OPTIONS, grpc
from dartspec.v1 import ngram_pb2, ngram_pb2_grpc

ROUNDS = 512
CALLERS = (1, 4, 16, 64)
CONNECTIONS = (1, 8)
WARM_UP_SHARE = 0.1


@dataclass(frozen=True)
class Run:
    """One way to call the service."""

    transport: str
    callers: int
    connections: int
    hogged: bool = False


def requests_for(index: Path, mode: str) -> list[Any]:
    """Search requests of one tree each, as rounds that follow the counts of an index would send them."""
    import ngram_index

    fingerprint = ngram_index.Index.open(index).fingerprint
    wanted = {"index": str(index), "backing": "mmap", "rounds": ROUNDS, "seed": SEED, "passes": 0, "export": True}
    rounds = run_program("bench_search", wanted | {"settings": [setting(mode)], "baseline_rounds": 0})["rounds"]
    modes = {"survival": ngram_pb2.SEARCH_MODE_SURVIVAL, "reference": ngram_pb2.SEARCH_MODE_REFERENCE}
    requests = []
    for entry in rounds:
        request = ngram_pb2.SearchRequest(tokenizer_fingerprint=fingerprint)
        request.params.mode = modes[mode]
        query = request.queries.add(context=entry["context"])
        query.proposals.revision = 1
        query.proposals.widths.extend(len(tokens) for tokens in entry["tokens"])
        query.proposals.token_ids = np.concatenate(entry["tokens"]).astype("<i4").tobytes()
        query.proposals.logprobs = np.concatenate(entry["logprobs"]).astype("<f4").tobytes()
        requests.append(request)
    return requests


def open_connection(address: str) -> Any:
    """A channel as the product's clients open it, but with a connection of its own."""
    own = [("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost")]
    return grpc.aio.insecure_channel(address, options=[*GRPC_OPTIONS, *own])


async def call(address: str, requests: list[Any], run: Run, seconds: float) -> dict[str, Any]:
    """Call for a while; the first tenth of the time warms up."""
    channels = [open_connection(address) for _ in range(run.connections)]
    stubs = [ngram_pb2_grpc.NgramServiceStub(channel) for channel in channels]
    begin = time.perf_counter()
    measured, end = begin + seconds * WARM_UP_SHARE, begin + seconds
    times: list[float] = []
    errors: list[str] = []

    async def caller(number: int) -> None:
        stub = stubs[number % len(stubs)]
        for request in cycle(requests[number::7] + requests[:number]):
            start = time.perf_counter()
            if start >= end:
                return
            try:
                await stub.Search(request, timeout=30)
            except grpc.aio.AioRpcError as error:
                errors.append(error.code().name)
            if start >= measured:
                times.append(time.perf_counter() - start)

    await asyncio.gather(*(caller(number) for number in range(run.callers)))
    for channel in channels:
        await channel.close()
    values = np.array(times) * 1e6
    return {
        "transport": run.transport,
        "callers": run.callers,
        "connections": run.connections,
        "memory_hog": run.hogged,
        "p50_us": round(float(np.percentile(values, 50)), 1),
        "p99_us": round(float(np.percentile(values, 99)), 1),
        "calls_per_s": round(len(values) / (end - measured)),
        "errors": len(errors),
        "error_codes": sorted(set(errors)),
    }


def runs() -> list[Run]:
    """Every transport with every number of connections and callers, then some next to a memory hog."""
    calm = [
        Run(transport, callers, connections)
        for transport in ("unix", "tcp")
        for connections in CONNECTIONS
        for callers in CALLERS
        if callers >= connections
    ]
    return calm + [Run("unix", callers, 1, hogged=True) for callers in CALLERS]


async def measure(addresses: dict[str, str], requests: list[Any], seconds: float) -> list[dict[str, Any]]:
    found = []
    for run in tqdm(runs(), unit="run"):
        if run.hogged:
            with memory_hog(seconds + 10):
                found.append(await call(addresses[run.transport], requests, run, seconds))
        else:
            found.append(await call(addresses[run.transport], requests, run, seconds))
    return found


@click.command(help=__doc__)
@click.option("--index", "indexes", multiple=True, type=click.Path(path_type=Path, exists=True), help="Repeatable.")
@click.option("--nodes", default=2e7, show_default=True, help="Without --index: nodes of each synthetic index.")
@click.option("--mode", default="survival", show_default=True, type=click.Choice(["survival", "reference"]))
@click.option("--seconds", default=5.0, show_default=True, help="Length of each run.")
@click.option("--backing", default="populate", show_default=True, type=click.Choice(["mmap", "populate", "copy"]))
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where indexes are made for the run.")
def main(indexes: tuple[Path, ...], nodes: float, mode: str, seconds: float, backing: str, folder: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        paths = list(indexes)
        if not paths:
            for number in (1, 2):
                paths.append(Path(made) / f"service-{number}.ngx")
                make_index(paths[-1], nodes=int(nodes), seed=number, fingerprint=f"{number:016x}")
        requests = [each for pair in zip(*(requests_for(path, mode) for path in paths), strict=True) for each in pair]
        socket = f"unix:{made}/ngram.sock"
        with service(paths, [socket, "127.0.0.1:0"], "--backing", backing) as running:
            addresses = {"unix": socket, "tcp": running.addresses[1]}
            before = resident(running.process)
            found = asyncio.run(measure(addresses, requests, seconds))
            after = resident(running.process)
    result = {
        "p50_us": next(entry["p50_us"] for entry in found if entry["callers"] == 1),
        "calls_per_s": max(entry["calls_per_s"] for entry in found),
        "mode": mode,
        "indexes": len(paths),
        "ready_s": round(running.ready_s, 2),
        "resident_mb_before": round(before / MEGABYTE),
        "resident_mb_after": round(after / MEGABYTE),
        "errors": sum(entry["errors"] for entry in found),
        "runs": found,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
