"""The Triton kernels compute what plain torch computes, and are compiled for a GPU, both without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dartspec.services.verifier.static_inputs import ITEM_FIELDS, ROW_FIELDS, UNIT_BYTES, WORDS

triton = pytest.importorskip("triton", reason="Triton comes with torch for CUDA")
ROOT = Path(__file__).resolve().parents[3]

# 2, 3 or no heads that share keys; head sizes 6 to 22, powers of two or not; with and without norms of heads.
CASES = ("qwen3:float32", "llama_three_heads:float32", "llama_head_dim_22:float32", "llama_no_groups:float16")
TOLERANCE = {"float32": 3e-6, "float16": 3e-3}


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, float]]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "tests.unit.verifier.interpreted_kernels", *CASES]
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("the interpreter of this Triton (3.6 does so) needs an older numpy")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_each_kernel_is_its_plain_twin(interpreted: dict[str, dict[str, float]], case: str) -> None:
    found = dict(interpreted[case])
    assert found.pop("places") == 0
    assert set(found) == {"first norm", "norm", "gate", "queries", "caches", "attention"}
    for kernel, error in found.items():
        assert error <= TOLERANCE[case.partition(":")[2]], kernel


def ptx(kernel: Any, pointers: dict[str, str], constants: dict[str, Any], **options: int) -> str:
    """What a kernel becomes for an H100 or H200; every other argument is a number."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        return f"*{pointers[name]}" if name in pointers else "fp32" if name in ("scale", "epsilon") else "i32"

    signature = {name: kind(name) for name in kernel.arg_names}
    at = {name: (number,) for number, name in enumerate(kernel.arg_names)}
    aligned = {at[name]: [["tt.divisibility", 16]] for name in pointers}
    source = ASTSource(kernel, signature, {at[name]: value for name, value in constants.items()}, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


SHAPE = {"HEADS": 32, "HEAD_DIM": 128}
PARTS = {**SHAPE, "BLOCK_D": 128, "SPLITS": 16, "KEYS": 128}
UNIT = UNIT_BYTES // 2


@pytest.fixture
def compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize(("tile", "product"), [(4, "mma.sync"), (16, "wgmma.mma_async")])
def test_attention_reads_keys_in_wide_copies_and_uses_matrix_units(tile: int, product: str) -> None:
    from dartspec.services.verifier.attention_kernel import attend_part

    pointers = {"queries": "bf16", "items": "i64", "visible": "i64", "sums": "fp32", "scores": "fp32", "anchor": "bf16"}
    constants = {
        **PARTS,
        "KV_HEADS": 8,
        "GROUP": 4,
        "TILE": tile,
        "WORDS": WORDS,
        "ITEM_FIELDS": ITEM_FIELDS,
        "UNIT": UNIT,
    }
    code = ptx(attend_part, pointers, constants, num_warps=4, num_stages=2)
    assert product in code
    assert "cp.async.cg.shared.global" in code  # of 16 bytes
    assert "cp.async.ca.shared.global" not in code  # of less
    assert "ld.global.b16" not in code


@pytest.mark.usefixtures("compiled_anew")
def test_the_other_kernels_are_compiled_without_narrow_loads() -> None:
    from dartspec.services.verifier.attention_kernel import combine
    from dartspec.services.verifier.row_kernels import add_norm, gate, rotate_store

    short = dict.fromkeys(("x", "delta", "weight", "total", "normed", "gate_up", "out", "qkv", "queries"), "bf16")
    short |= dict.fromkeys(("cos", "sin", "q_norm", "k_norm", "anchor"), "bf16")
    types = {**short, "rows": "i64", "positions": "i64", "sums": "fp32", "scores": "fp32"}
    rotation = {**SHAPE, "KV_HEADS": 8, "BLOCK": 64, "QK_NORM": True, "ROW_FIELDS": ROW_FIELDS, "UNIT": UNIT}
    programs = [
        (add_norm, {"SIZE": 4096, "BLOCK": 4096, "HAS_DELTA": True}, 8),
        (gate, {"SIZE": 12288, "BLOCK": 1024}, 4),
        (rotate_store, rotation, 1),
        (combine, {**PARTS, "ROW_FIELDS": ROW_FIELDS}, 1),
    ]
    for kernel, constants, warps in programs:
        pointers = {name: types[name] for name in kernel.arg_names if name in types}
        code = ptx(kernel, pointers, constants, num_warps=warps)
        assert "st.global" in code
        assert "global.b16" not in code
