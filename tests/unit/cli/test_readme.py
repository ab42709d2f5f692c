"""What the README shows works: its Python runs, its commands parse, its links and make targets exist."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from pathlib import Path

import click
import pytest

from dartspec.cli.main import dartspec as dartspec_group
from tests.unit.cli.fake_gateway import FakeGateway, serving

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def command_lines() -> list[str]:
    lines = "\n".join(text for language, text in BLOCKS if language == "").replace("\\\n", " ").splitlines()
    commands = [line.strip().removeprefix(".venv/bin/") for line in lines]
    return [line for line in commands if line.startswith("dartspec ")]


async def test_the_python_example_runs():
    (source,) = (text for language, text in BLOCKS if language == "python" and "import grpc" in text)
    gateway = FakeGateway()
    async with serving(gateway) as address:
        assert "127.0.0.1:7000" in source
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            source.replace("127.0.0.1:7000", address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out.decode().startswith("5 6 7 8 9 ")
    assert "dart_rounds: 2" in out.decode()
    assert gateway.requests[0].seed == 7


def test_there_are_commands_to_check():
    assert len(command_lines()) >= 6


@pytest.mark.parametrize("line", command_lines())
def test_every_command_parses(line):
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = dartspec_group
    context = click.Context(command, info_name="dartspec")
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"no command {name!r}"
        command = found
        context = click.Context(command, parent=context, info_name=name)
    command.parse_args(context, words)


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"\bmake ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text()))
    assert used
    assert used <= targets


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/structure.md"])
def test_links_and_named_files_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    named = re.findall(r"`((?:services|gateway|dartspec/cli|proto|rust|tests|docs)/[\w./-]+)`", text)
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert missing == []
