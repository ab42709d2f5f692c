"""The picture of `dartspec bench serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dartspec.cli.load_plot import draw
from dartspec.cli.load_sample import Sample
from tests.unit.cli.command import Result, dartspec
from tests.unit.cli.fake_gateway import FakeGateway, serving


def test_lines_are_shares_of_first_tokens_and_of_later_ones() -> None:
    samples = [
        Sample("a", "dart", chunks=[(0.3, 1), (0.5, 2)], finished=True),  # two tokens 0.1 s each
        Sample("a", "dart", chunks=[(0.1, 2), (0.4, 1)], finished=True),  # one after 0.3 s
        Sample("a", "dart", chunks=[(0.2, 1)], error="UNAVAILABLE"),
        Sample("b", "plain", finished=True),  # no token, so no time of one
        Sample("b", "auto", chunks=[(0.2, 1)], finished=True),
        Sample("c", "auto"),
    ]
    first, between = draw(samples).axes
    assert [line.get_label() for line in first.lines] == ["a, dart", "b, auto"]
    assert [line.get_label() for line in between.lines] == ["a, dart", "b, auto"]
    assert points(first.lines[0]) == [(100, 0.5), (300, 1.0)]
    assert points(between.lines[0]) == [(100, 0.3333), (100, 0.6667), (300, 1.0)]
    assert points(first.lines[1]) == [(200, 1.0)]
    assert points(between.lines[1]) == []


def points(line: Any) -> list[tuple[float, float]]:
    return [(round(float(x), 4), round(float(y), 4)) for x, y in line.get_xydata()]


def test_nothing_measured_is_an_empty_picture(tmp_path: Path) -> None:
    figure = draw([Sample("a", "auto", error="UNAVAILABLE")])
    assert [len(axis.lines) for axis in figure.axes] == [0, 0]
    figure.savefig(tmp_path / "p.png")  # without a legend


async def load_with_picture(directory: Path, picture: Path) -> Result:
    file = directory / "q.jsonl"
    file.write_text('{"prompt": "Hi"}\n')
    async with serving(FakeGateway()) as address:
        sent = ("bench", "serve", "--target", address, "--prompts", str(file), "--requests", "2", "--clients", "1")
        return await dartspec(*sent, "--plot", str(picture))


async def test_the_picture_comes_with_the_figures(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    result = await load_with_picture(tmp_path, picture)
    assert result.code == 0, result.err
    assert json.loads(result.out.splitlines()[-1])["all"]["finished"] == 2
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


async def test_a_full_disk_does_not_cost_the_figures(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    picture.symlink_to("/dev/full")
    result = await load_with_picture(tmp_path, picture)
    assert result.code == 1
    assert json.loads(result.out.splitlines()[-1])["all"]["finished"] == 2
    assert result.err.splitlines()[-1].startswith(f"error: --plot {picture}: cannot be written: ")
    assert "Traceback" not in result.err
