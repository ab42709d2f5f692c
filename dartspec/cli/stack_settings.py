"""What a local stack is made of. Other settings of a service come from its own variables (DARTSPEC_VERIFIER_* ...)."""

from __future__ import annotations

from dataclasses import dataclass

from dartspec.cli.locations import BUILT_IN_MODEL, HEAD_FILE, shipped_directory
from dartspec.services.common.config import between, setting

DTYPES = ("auto", "float32", "bfloat16")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class StackSettings:
    """Flags shared by every command that starts a stack."""

    model: str = setting(BUILT_IN_MODEL, "Target: a directory, a GGUF file, a hub id, or the built-in smollm2-135m.")
    revision: str | None = setting(None, "Revision of a model from the hub.")
    head: str | None = setting(
        None, "Draft head: a directory, a hub id or 'none'.  [default: the one made for the model]"
    )
    index: str | None = setting(
        None, "n-gram index file, or 'none' for the verifier's own chain.  [default: the built-in model's, else none]"
    )
    device: str = setting(
        "auto", "auto, cpu, cuda or cuda:N; replicas take the entries of a comma-separated list in turn."
    )
    dtype: str = setting(
        "auto", "Numbers of the target; auto is bfloat16 where it is native, else float32.", choices=DTYPES
    )
    replicas: int = setting(1, "Number of verifiers.", check=between(1, 64))
    threads: int | None = setting(
        None, "CPU threads of each verifier.  [default: all cores, shared]", check=between(1, 4096)
    )
    budget: str | None = setting(
        None, "Most nodes of a verification pass: fixed:N or adaptive.  [default: the verifier's]"
    )
    invariant: str | None = setting(
        None,
        "Rows of a pass do not depend on what shares it (docs/exactness.md).  [default: the verifier's]",
        choices=("auto", "on", "off"),
    )
    log_level: str = setting("info", "What the services log.", choices=LOG_LEVELS)

    @property
    def head_source(self) -> str | None:
        """The head that was asked for, else the one that ships for the model; None leaves it to the verifier."""
        if self.head is not None:
            return self.head
        shipped = shipped_directory(self.model)
        return str(shipped) if shipped is not None and (shipped / HEAD_FILE).is_file() else None

    def device_of(self, replica: int) -> str:
        """The device of the i-th verifier."""
        devices = self.device.split(",")
        return devices[replica % len(devices)].strip()
