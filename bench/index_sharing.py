"""One index in memory for everybody: `python -m bench.index_sharing`.

Starts ngram, three verifiers and two gateways, answers through both gateways, and reads from /proc how much of the
index each process maps. Then a second ngram process and a reader in this process open the same file, as in an upgrade.
PSS (proportional set size) divides each page by the number of processes that map it, so PSS adds up to what memory
really holds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import ngram_index
import psutil

from bench.index_process import service
from dartspec.cli.client import GatewayClient
from dartspec.cli.process import Program
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.stack import running_stack
from dartspec.cli.stack_settings import StackSettings

PROMPT = "What is a prime number?"
KINDS = ("ngram", "verifier", "gateway")


@dataclass(frozen=True)
class Mapped:
    """What a process maps of a file, and all that it holds, bytes."""

    process: str
    mapped: int
    rss: int
    pss: int
    process_pss: int


def mapped(pid: int, file: Path, name: str) -> Mapped:
    """Add up the maps of ``file`` in a process; zeros when it maps none of it."""
    sums = {"Size": 0, "Rss": 0, "Pss": 0}
    ours = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if "-" in line.split(" ", 1)[0]:  # the head of a map: addresses, rights, ..., path
            ours = line.endswith(str(file))
        elif ours and key in sums:
            sums[key] += int(rest.split()[0]) * 1024
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    whole = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return Mapped(name, sums["Size"], sums["Rss"], sums["Pss"], whole * 1024)


def measure(file: Path) -> list[Mapped]:
    """Every dartspec process that this one has started."""
    found = []
    for child in psutil.Process().children(recursive=True):
        words = child.cmdline()
        kind = next((kind for kind in KINDS if kind in words and "serve" in words), None)
        if kind is not None:
            found.append(mapped(child.pid, file, f"{kind} {child.pid}"))
    return sorted(found, key=lambda each: each.process)


async def trees(address: str) -> int:
    """Nodes of the trees that an answer through a gateway was offered."""
    async with GatewayClient(address) as client:
        answer = await client.answer(PROMPT, RequestSettings(max_tokens=24, temperature=0.0, mode="dart"))
    return answer.ledger.nodes_offered - answer.ledger.chain_fallbacks


async def run(index: str | None) -> dict[str, object]:
    """Measure and say."""
    settings = StackSettings(replicas=3, dtype="float32", threads=1, budget="fixed:16", index=index)
    async with AsyncExitStack() as exits:
        stack = await exits.enter_async_context(running_stack(settings))
        if stack.index is None or stack.ngram is None:
            raise click.ClickException("there is no index for the model; name one with --index")
        second = ["gateway", "serve", "--listen", "127.0.0.1:0", "--ngram", stack.ngram]
        for address in stack.verifiers:
            second += ["--verifier", address]
        (address,) = await stack.services.start(Program("gateway-2", tuple(second)))
        nodes = [await trees(each) for each in (stack.gateway, address)]
        one = measure(stack.index)
        with service([stack.index], [f"unix:{Path(stack.ngram.removeprefix('unix:')).parent}/new.sock"]):
            reader = ngram_index.Index.open(stack.index)
            reader.verify()  # reads every byte of it
            many = [*measure(stack.index), mapped(psutil.Process().pid, stack.index, "reader in this process")]
            del reader
        return {
            "index_bytes": stack.index.stat().st_size,
            "nodes_offered_by_gateway": nodes,
            "one_ngram": rows(one),
            "old_and_new_ngram_and_a_reader": rows(many),
            "pss_of_the_index": sum(each.pss for each in many),
        }


def rows(found: Sequence[Mapped]) -> list[dict[str, object]]:
    """For the JSON, in MB."""
    megabytes = ("mapped", "rss", "pss", "process_pss")
    return [{"process": each.process, **{key: getattr(each, key) / 1e6 for key in megabytes}} for each in found]


def shared(report: dict[str, object]) -> bool:
    """ngram alone maps the index, and its pages are in memory once however many map it."""
    one, many = report["one_ngram"], report["old_and_new_ngram_and_a_reader"]
    assert isinstance(one, list)
    assert isinstance(many, list)
    foreign = [row for row in [*one, *many] if row["process"].split()[0] in ("verifier", "gateway") and row["mapped"]]
    size, held = report["index_bytes"], report["pss_of_the_index"]
    assert isinstance(size, int)
    assert isinstance(held, int)
    return not foreign and held <= 1.02 * size + 65536


@click.command()
@click.option("--index", default=None, help="Index for SmolLM2's tokenizer.  [default: the demo's]")
def main(index: str | None) -> None:
    """Who maps the index, and how much of memory it takes."""
    report = asyncio.run(run(index))
    print(json.dumps({**report, "shared": shared(report)}))
    sys.exit(0 if shared(report) else 1)


if __name__ == "__main__":
    main()
