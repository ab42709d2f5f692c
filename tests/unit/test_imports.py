"""Imports point one way: generated code, common, then draft, verifier, ngram or gateway; cli on top of all.

`evaluate` is no service: it simulates the three of them in one process, so it imports them, and only the command it.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "dartspec.cli": ROOT / "dartspec" / "cli",
    "dartspec.gateway": ROOT / "gateway",
    "dartspec.services": ROOT / "services",
}

# Part of the project: the other parts that it may import, itself and the generated code aside.
MAY_IMPORT = {
    "dartspec.services.common": set(),
    "dartspec.services.draft": {"dartspec.services.common"},
    "dartspec.services.verifier": {"dartspec.services.common", "dartspec.services.draft"},
    "dartspec.services.ngram": {"dartspec.services.common"},
    "dartspec.services.evaluate": {
        "dartspec.services.common",
        "dartspec.services.draft",
        "dartspec.services.verifier",
        "dartspec.services.ngram",
    },
    "dartspec.gateway": {"dartspec.services.common"},
    "dartspec.cli": {"dartspec.services.common", "dartspec.services.evaluate"},
}
# Packages that only these parts, or modules, may import.
ONLY_IN = {
    "torch": {"dartspec.services.draft", "dartspec.services.verifier"},
    "transformers": {"dartspec.services.draft", "dartspec.services.verifier", "dartspec.services.evaluate"},
    "safetensors": {"dartspec.services.draft", "dartspec.services.verifier"},
    "ngram_index": {"dartspec.services.ngram", "dartspec.gateway.relay"},
    "redis": {"dartspec.services.common.redis_records"},
    "opentelemetry": {"dartspec.gateway.tracing"},
}


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *parts])
            yield name.removesuffix(".__init__"), path


def imported(path: Path, module: str) -> Iterator[str]:
    """Full names of everything that a module imports, wherever in it."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def part_of(name: str) -> str | None:
    return next((part for part in MAY_IMPORT if name == part or name.startswith(part + ".")), None)


def violations(module: str, names: list[str]) -> list[str]:
    part = part_of(module)
    found = []
    for name in names:
        other, top = part_of(name), name.partition(".")[0]
        if other is not None and other != part and other not in MAY_IMPORT.get(part, set()):
            found.append(f"{module} imports {name}")
        if top in ONLY_IN and not ONLY_IN[top] & {part, module}:
            found.append(f"{module} imports {name}")
    return found


def test_the_tree_holds_the_rules():
    listed = dict(modules())
    assert len(listed) > 30
    assert {part_of(name) for name in listed} >= {*MAY_IMPORT}
    found = [line for name, path in listed.items() for line in violations(name, list(imported(path, name)))]
    assert found == []


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("dartspec.gateway.a", "import torch.nn", ["dartspec.gateway.a imports torch.nn"]),
        (
            "dartspec.gateway.a",
            "def f():\n    from dartspec.services.verifier import x",
            ["dartspec.gateway.a imports dartspec.services.verifier.x"],
        ),
        (
            "dartspec.services.draft.a",
            "from dartspec.services import ngram",
            ["dartspec.services.draft.a imports dartspec.services.ngram"],
        ),
        (
            "dartspec.services.common.a",
            "from ..draft import head",
            ["dartspec.services.common.a imports dartspec.services.draft.head"],
        ),
        ("dartspec.cli.a", "import dartspec.gateway.rounds", ["dartspec.cli.a imports dartspec.gateway.rounds"]),
        ("dartspec.services.verifier.a", "from dartspec.services.draft.head import H\nimport torch", []),
        ("dartspec.services.common.a", "import redis.asyncio", ["dartspec.services.common.a imports redis.asyncio"]),
        ("dartspec.services.common.redis_records", "import redis.asyncio", []),
        ("dartspec.services.ngram.a", "import ngram_index\nfrom dartspec.v1 import ngram_pb2", []),
    ],
)
def test_the_rules_catch_what_they_should(tmp_path, module, source, expected):
    path = tmp_path / "a.py"
    path.write_text(source)
    assert violations(module, list(imported(path, module))) == expected


def test_generated_code_is_not_committed():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    committed = done.stdout.splitlines()
    assert "pyproject.toml" in committed
    assert [path for path in committed if "_pb2" in path or path.startswith("dartspec/v1/")] == []
    assert [path for path in committed if path.endswith((".so", ".pyd", ".dylib"))] == []
