"""The real stack with fake services: patches their command lines; as a program it is `dartspec` with them.

`python -m tests.unit.cli.fake_stack up ...`, from the repository's root; the environment variable FAKE_<NAME> is a
service's behaviour.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dartspec.cli import stack
from dartspec.cli.main import main
from dartspec.cli.process import Program


@dataclass(frozen=True)
class FakeProgram(Program):
    """Runs `fake_service`."""

    @property
    def argv(self) -> list[str]:
        """With the behaviour that the environment asks for."""
        behaviour = os.environ.get(f"FAKE_{self.name.upper().partition('-')[0]}", "serve")
        return [
            sys.executable,
            "-m",
            "tests.unit.cli.fake_service",
            str(os.getpid()),
            self.name,
            *self.arguments,
            behaviour,
        ]


def fake_programs() -> dict[str, Any]:
    """Replacements for the functions that `dartspec.cli.stack` makes command lines with."""

    def verifier(settings: Any, replica: int, address: str, **_: Any) -> Program:
        return FakeProgram("verifier" if settings.replicas == 1 else f"verifier-{replica}", (address,))

    def gateway(settings: Any, listen: Sequence[str], *others: Any) -> Program:
        http_listen = others[-1]
        # What the fake is told to listen on comes back in its ready line; the URL is only said.
        return FakeProgram("gateway", (f"{listen[0]},http://{http_listen}" if http_listen else listen[0],))

    return {"verifier_program": verifier, "gateway_program": gateway}


if __name__ == "__main__":
    for name, function in fake_programs().items():
        setattr(stack, name, function)
    sys.exit(main(sys.argv[1:]))
