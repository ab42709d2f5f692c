"""What this machine is, as far as it can be told without torch."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # x86 with AMX, x86 with AVX-512, Arm
SHOWN_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "bf16", "sve", "asimd")


@dataclass(frozen=True)
class Machine:
    """Processor, memory and graphics cards. Memory in bytes, a container's limit included."""

    processor: str
    cores: int
    flags: frozenset[str]
    memory_total: int
    memory_available: int
    gpus: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """The processor's flags that matter here."""
        return tuple(flag for flag in SHOWN_FLAGS if flag in self.flags)


def read_machine() -> Machine:
    """Look at this machine."""
    fields = _cpuinfo()
    memory = psutil.virtual_memory()
    limit = _memory_limit()
    return Machine(
        processor=fields.get("model name") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        flags=frozenset((fields.get("flags") or fields.get("Features") or "").split()),
        memory_total=min(memory.total, limit),
        memory_available=min(memory.available, limit),
        gpus=_gpus(),
    )


def native_dtype(machine: Machine, device: str) -> tuple[str, str]:
    """The dtype that suits the machine, and why: bfloat16 where it is native, else float32."""
    if device.startswith("cuda") or (device == "auto" and machine.gpus):
        return "bfloat16", "native on the GPU"
    flags = [flag for flag in BF16_FLAGS if flag in machine.flags]
    if flags:
        return "bfloat16", f"native on this processor ({flags[0]})"
    return "float32", "this processor has no native bfloat16"


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _memory_limit() -> int:
    try:
        return int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no limit reads as "max"
        return 1 << 62


def _gpus() -> tuple[str, ...]:
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        fields = dict(line.partition(":")[::2] for line in path.read_text().splitlines())
        names.append(fields.get("Model", "NVIDIA").strip())
    return tuple(names)
