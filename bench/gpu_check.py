"""What a GPU does with a model of Qwen3-8B's shape: `python -m bench.gpu_check --out FILE`.

Random weights, made on the device; no download. The sections run in order of worth until the time is over; one that
fails says so in its `error` and the others go on. The report is a JSON object, written after every section and printed
as the last line.
`--preset small` runs the same sections on tiny shapes, on a processor too. docs/gpu.md says what the numbers mean.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from bench import gpu_attention, gpu_correctness, gpu_host, gpu_passes
from bench.gpu_model import PRESETS, Preset, make_target
from bench.gpu_timing import Clock, bandwidth, rounded
from dartspec.services.verifier.graphs import MOST_ROWS, Graphs, probe, shapes
from dartspec.services.verifier.loader import LoadedTarget

# Seconds that must be left for a section to begin.
_LEAST = 5.0
_MOST_NODES = 59


class Check:
    """One run: the sections share a target, which the first that needs it makes."""

    def __init__(self, preset: Preset, device: torch.device, clock: Clock) -> None:
        self.preset = preset
        self.device = device
        self.clock = clock
        self._loaded: LoadedTarget | None = None
        self._copy_gb_per_s = float("nan")

    @property
    def loaded(self) -> LoadedTarget:
        """The target. Raises if the section that makes it failed."""
        if self._loaded is None:
            raise RuntimeError("there is no target, see section target")
        return self._loaded

    def sections(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        """In order of worth. Each fills the report that it is given."""
        preset, clock = self.preset, self.clock
        return {
            "correctness": lambda report: gpu_correctness.check(self.device, report),
            "bandwidth": self._bandwidth,
            "target": self._target,
            "graphs": self._graphs,
            "passes": lambda report: gpu_passes.passes(self.loaded, preset, self._copy_gb_per_s, clock, report),
            "drafts": lambda report: gpu_passes.drafts(self.loaded, preset, clock, report),
            "logits": lambda report: gpu_host.logits(self.loaded, preset, report),
            "sampler": lambda report: gpu_host.sampler(self.loaded, report),
            "steps": lambda report: gpu_host.steps(self.loaded, preset, clock, report),
            "prompts": lambda report: gpu_passes.prompts(self.loaded, preset, clock, report),
            "company": lambda report: gpu_passes.company(self.loaded, preset, clock, report),
            "products": lambda report: gpu_passes.products(self.loaded, preset, self._copy_gb_per_s, report),
            "attention": lambda report: gpu_attention.check(self.loaded, preset, self._copy_gb_per_s, clock, report),
        }

    def _bandwidth(self, report: dict[str, Any]) -> None:
        report.update(bandwidth(self.device))
        self._copy_gb_per_s = report["copy_gb_per_s"]

    def _target(self, report: dict[str, Any]) -> None:
        begin = time.perf_counter()
        self._loaded = make_target(self.preset, self.device)
        report["seconds"] = rounded(time.perf_counter() - begin)
        if self.device.type == "cuda":
            report["allocated_bytes"] = torch.cuda.memory_allocated(self.device)
            report["peak_bytes"] = torch.cuda.max_memory_allocated(self.device)

    def _graphs(self, report: dict[str, Any]) -> None:
        """The target as it serves, with graphs where they work; on a processor a few of the same passes, uncaptured."""
        target = self.loaded.target
        begin = time.perf_counter()
        c, most = target.config, max(self.preset.batches)
        if self.device.type == "cuda":
            target.prepare(most, _MOST_NODES)
            graphs = target.fast if isinstance(target.fast, Graphs) else None
            report["used"] = graphs is not None
            if graphs is None:
                # Once more without the judgement, so that the report says what was wrong.
                graphs = gpu_correctness.graphs_for(
                    target, [s for s in shapes(c.heads // c.kv_heads, 4, 59) if s.rows < 17]
                )
        else:
            report["used"] = False
            graphs = gpu_correctness.graphs_for(
                target, [s for s in shapes(c.heads // c.kv_heads, most, _MOST_NODES) if s.rows in (1, 8)]
            )
        report["captured"], report["most_rows"] = len(graphs), MOST_ROWS
        report["seconds"] = rounded(time.perf_counter() - begin)
        error, ratio = probe(target, graphs)
        report["relative_error"], report["time_over_eager"] = rounded(error), rounded(ratio)


def machine(device: torch.device) -> dict[str, Any]:
    """Names and versions."""
    found = {
        "device": "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
    }
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = None
    return found


def run(preset: str, device: torch.device, seconds: float, out: Path | None, only: list[str]) -> dict[str, Any]:
    """All sections, or ``only`` some; the report."""
    began = time.monotonic()
    check = Check(PRESETS[preset], device, Clock(seconds))
    report: dict[str, Any] = {"preset": preset, "machine": machine(device), "sections": {}}
    for name, section in check.sections().items():
        if only and name not in only and name not in ("bandwidth", "target", "graphs"):
            continue
        part: dict[str, Any] = {}
        report["sections"][name] = part
        begin = time.monotonic()
        print(f"{begin - began:6.1f} s  {name}", file=sys.stderr, flush=True)
        if check.clock.left() < _LEAST:
            part["error"] = "the time was over"
        else:
            try:
                section(part)
            except Exception as error:
                part["error"] = f"{type(error).__name__}: {str(error)[:2000]}"
                traceback.print_exc()
        part["took_s"] = round(time.monotonic() - begin, 2)
        report["took_s"] = round(time.monotonic() - began, 2)
        if out is not None:
            out.write_text(json.dumps(report, indent=1) + "\n")
    return report


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check", description=__doc__)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="qwen3-8b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=440.0, help="No section and no point begins after this.")
    parser.add_argument("--only", nargs="*", default=[], metavar="SECTION", help="Leave the other measurements out.")
    parser.add_argument("--out", type=Path, help="Where the report goes after every section.")
    given = parser.parse_args()
    print(json.dumps(run(given.preset, torch.device(given.device), given.seconds, given.out, given.only)))


if __name__ == "__main__":
    main()
