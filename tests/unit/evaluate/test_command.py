"""`dartspec draft eval` on a tiny model: what it prints, and what it refuses before it loads anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dartspec.cli.exit_codes import WRONG_USE
from dartspec.cli.main import main
from tests.integration.tiny_model import TinyModel, make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    (directory / "first.jsonl").write_text('{"turns": ["hello"]}\n{"prompt": "world"}\n{"prompt": "unused"}\n')
    (directory / "second.jsonl").write_text('{"prompt": "hello world"}\n')
    return directory


def test_it_prints_tables_a_plot_and_json(
    tiny: TinyModel, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "curves.png"
    arguments = ["draft", "eval", "--data", str(data), "--limit", "2", "--model", str(tiny.model)]
    arguments += ["--head", str(tiny.head), "--index", str(tiny.index), "--max-new", "12", "--threads", "1"]
    arguments += ["--dtype", "float32", "--temperature", "0", "--temperature", "1", "--seed", "3", "--seed", "4"]
    arguments += ["--theta", "4", "--theta", "16", "--search", "survival", "--search", "chain"]
    assert main([*arguments, "--plot", str(plot), "--json"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert report["prompts"] == {"first": 2, "second": 1}
    # Temperature 0 has no noise to share; there are two weights and two budgets, and one chain.
    assert [(point["temperature"], point["share_noise"]) for point in report["points"]] == (
        [(0.0, False)] * 5 + [(1.0, True)] * 5 + [(1.0, False)] * 5
    )
    assert [len(point["mean_by_seed"]) for point in report["points"]] == [1] * 5 + [2] * 10
    for point in report["points"]:
        assert set(point["mean_committed"]) == {"first", "second"}
        assert point["mean"] == pytest.approx(sum(point["mean_committed"].values()) / 2, abs=1e-4)
        assert all(one <= ten for one, ten in zip(point["hit1"], point["hit10"], strict=True))
    assert report["mean_committed"] == report["points"][0]["mean_committed"]
    assert len(table) == (1 + 2 * 3) + 1 + (1 + 15)
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--data"),
        (["--data", "nowhere"], "nowhere"),
        (["--data", "DATA", "--theta", "0"], "--theta"),
        (["--data", "DATA", "--ngram-weight", "3"], "--ngram-weight"),
        (["--data", "DATA", "--search", "widest"], "widest"),
        (["--data", "DATA", "--index", "nothing.ngx"], "nothing.ngx"),
        (["--data", "DATA", "--head", "./nothing"], "./nothing"),
        (["--data", "DATA", "--index", "none", "--search", "reference"], "--search"),
        (["--data", "DATA", "--model", "other"], "--head"),
        (["--data", "DATA", "--plot", "curves.txt"], "curves.txt"),
    ],
)
def test_bad_input_is_named(
    data: Path, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def unwanted(settings: object) -> None:
        raise AssertionError("nothing should be loaded")

    monkeypatch.setattr("dartspec.services.evaluate.run.load_replica", unwanted)
    given = [str(data) if argument == "DATA" else argument for argument in arguments]
    assert main(["draft", "eval", *given]) in (1, WRONG_USE)
    assert named in capsys.readouterr().err
