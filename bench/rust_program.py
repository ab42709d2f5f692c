"""Running the Rust programs of `rust/ngram_index/examples` that benchmarks use."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import click

CRATE = Path(__file__).parent.parent / "rust" / "ngram_index"


def run_program(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Build an example with optimisation and run it: `request` goes to its standard input, the last line that it prints
    is the result. What it says on stderr is passed on. Raises ClickException when it fails."""
    with subprocess.Popen([program(name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(json.dumps(request))
    if process.returncode != 0:
        raise click.ClickException(f"{name} ended with code {process.returncode}; what it said is above")
    return json.loads(output.splitlines()[-1])


def program(name: str) -> Path:
    """Build an example and return where it is. Raises ClickException when it does not compile."""
    build = ["cargo", "build", "--release", "--locked", "--example", name, "--message-format=json-render-diagnostics"]
    try:
        built = subprocess.run(build, cwd=CRATE, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise click.ClickException("cargo is not there; install Rust (https://rustup.rs)") from error
    if built.returncode != 0:
        raise click.ClickException(f"cargo could not build {name}; what it said is above")
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == name:
            return Path(message["executable"])
    raise click.ClickException(f"cargo did not say where {name} is")
