"""The GPU check runs on a processor at a small size: every section, the structure of its report, its correctness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_check

ROOT = Path(__file__).resolve().parents[3]
SECTIONS = [
    *("correctness", "bandwidth", "target", "graphs", "passes", "drafts", "logits", "sampler", "steps"),
    *("prompts", "company", "products", "attention"),
]
# Packages that the machine of a check may lack.
ABSENT = ("grpc", "prometheus_client", "ngram_index", "dartspec.v1")
WITHOUT = f"""
import importlib.abc, runpy, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in {ABSENT!r}):
            raise ImportError(name + " is absent")
sys.meta_path.insert(0, Absent())
sys.argv = ["gpu_check", *sys.argv[1:]]
runpy.run_module("bench.gpu_check", run_name="__main__")
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("check") / "report.json"
    program = [sys.executable, "-c", WITHOUT, "--preset", "small", "--device", "cpu", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = json.loads(done.stdout.splitlines()[-1])
    assert json.loads(out.read_text()) == printed
    return printed


def test_every_section_runs_without_optional_packages(report: dict[str, Any]) -> None:
    assert list(report["sections"]) == SECTIONS
    assert {name: part["error"] for name, part in report["sections"].items() if "error" in part} == {}
    assert report["machine"]["device"] == "cpu"


def test_logits_are_those_of_float64(report: dict[str, Any]) -> None:
    found = dict(report["sections"]["correctness"])
    found.pop("took_s")
    kinds = [f"{family} {dtype}" for family in ("llama", "qwen2", "qwen3") for dtype in ("float32", "bfloat16")]
    assert list(found) == kinds
    for kind, errors in found.items():
        assert errors.pop("rows") == 46
        assert list(errors) == ["eager", "graph, small tile", "graph, large tile"]
        for way, error in errors.items():
            assert error <= (1e-5 if kind.endswith("float32") else 0.1), (kind, way)
    assert report["sections"]["graphs"]["relative_error"] <= 1e-5


def test_passes_cover_contexts_batches_and_trees(report: dict[str, Any]) -> None:
    part = report["sections"]["passes"]
    points = [(point["context"], point["batch"], point["nodes"]) for point in part["points"]]
    assert points == [(c, b, n) for c in (40, 440) for n in (0, 8, 59) for b in (1, 4)]
    assert {"tokens_per_s", "eager"} <= set(part["points"][0])
    # 4 bytes each of: 8 layers (qkv, out, gate, up and down, two norms), a norm, the output matrix.
    assert part["weight_bytes"] == 4 * (8 * (64 * 128 + 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64 + 512 * 64)
    copy = report["sections"]["bandwidth"]["copy_gb_per_s"]
    last = part["points"][-1]
    moved = part["weight_bytes"] + 4 * 440 * 2 * 8 * 2 * 16 * 4
    assert last["limit_ms"] == pytest.approx(moved / copy / 1e6, rel=1e-3)


def test_drafts_cover_depths_vocabularies_and_batches(report: dict[str, Any]) -> None:
    points = report["sections"]["drafts"]["points"]
    found = [(point["draft_vocabulary"], point["depth"], point["batch"]) for point in points]
    assert found == [(v, d, b) for v in (128, 512) for d in (4, 8) for b in (1, 4)]


def test_ways_to_attend_agree(report: dict[str, Any]) -> None:
    for point in report["sections"]["attention"]["points"]:
        ways = {name: value for name, value in point.items() if isinstance(value, dict)}
        assert set(ways) == {"sdpa, grouped heads", "sdpa, heads as rows", "matmul"}
        assert all(way["error"] < 1e-5 for way in ways.values())


def test_a_row_equals_itself(report: dict[str, Any]) -> None:
    company = report["sections"]["company"]
    assert company["eager"]["1 sessions, 0 nodes"] is True
    assert all(len(letters) == len(company["product_rows"]) for letters in company["products"].values())


def test_a_failing_section_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(gpu_check, "make_target", broken)
    device = gpu_check.torch.device("cpu")
    out = tmp_path / "report.json"
    sections = gpu_check.run("small", device, 60.0, out, ["sampler", "bandwidth"])["sections"]
    assert sections["target"]["error"] == "MemoryError: no room"
    assert sections["sampler"]["error"] == "RuntimeError: there is no target, see section target"
    assert sections["bandwidth"]["copy_gb_per_s"] > 0
    assert json.loads(out.read_text())["sections"] == sections


def test_no_section_begins_after_the_time() -> None:
    sections = gpu_check.run("small", gpu_check.torch.device("cpu"), 0.0, None, [])["sections"]
    assert {part["error"] for part in sections.values()} == {"the time was over"}
