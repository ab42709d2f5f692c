"""`dartspec bench serve`: its plan, its figures, and the command against a scripted gateway."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dartspec.cli.load_plan import Arrival, Lengths, make_jobs, poisson, read_trace
from dartspec.cli.load_sample import Sample, Target, problems, report
from dartspec.cli.main import main
from dartspec.cli.prompts import Prompt
from dartspec.services.common.errors import InvalidArgument, ResourceExhausted
from tests.unit.cli.command import dartspec
from tests.unit.cli.fake_gateway import FakeGateway, serving


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_poisson_arrivals_come_at_their_rate_and_scatter_as_they_should() -> None:
    at = np.array([arrival.at for arrival in poisson(4.0, 20_000, rng())])
    gaps = np.diff(at)
    assert np.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert np.std(gaps) == pytest.approx(0.25, rel=0.03)  # of an exponential: its mean


def test_lengths() -> None:
    assert Lengths("64").draw(3, rng()) == [64, 64, 64]
    uniform = Lengths("uniform:16:1024").draw(5000, rng())
    assert (min(uniform), max(uniform)) == (16, 1024)
    assert np.mean(uniform) == pytest.approx(520, rel=0.03)
    lognormal = Lengths("lognormal:16:1024").draw(5000, rng())
    assert (min(lognormal), max(lognormal)) == (16, 1024)
    assert np.median(lognormal) == pytest.approx(128, rel=0.1)  # the geometric mean of 16 and 1024
    for wrong in ("0", "uniform:9", "uniform:9:8", "normal:1:2", "a", "fixed:3:4", str(2**31 + 1)):
        with pytest.raises(InvalidArgument, match="--tokens"):
            Lengths(wrong)


def test_a_trace_begins_at_zero_and_may_set_lengths(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"at": 12.5}\n\n{"at": 10, "max_tokens": 7}\n')
    assert read_trace(file) == [Arrival(0.0, 7), Arrival(2.5, None)]
    file.write_text('{"at": 1}\n{"when": 2}\n')
    with pytest.raises(InvalidArgument, match="line 2"):
        read_trace(file)
    file.write_text('{"at": 1.7e12}\n{"at": 1700000000500}\n')  # since 1970
    assert read_trace(file) == [Arrival(0.0), Arrival(500.0)]


@pytest.mark.parametrize(
    "line",
    [
        '{"at": NaN}',
        '{"at": Infinity}',
        '{"at": -1}',
        '{"at": "soon"}',
        '{"at": true}',
        f'{{"at": 1{"0" * 400}}}',
        '{"at": 0, "max_tokens": 0}',
        '{"at": 0, "max_tokens": 2.5}',
        '{"at": 0, "max_tokens": 1e999}',
        '{"at": 0, "max_tokens": 2147483649}',
        "[0]",
        "soon",
    ],
)
def test_wrong_lines_of_a_trace_are_shown(tmp_path: Path, line: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"at": 0}\n' + line)
    with pytest.raises(InvalidArgument, match="--trace") as error:
        read_trace(file)
    assert f"{file}, line 2: " in error.value.message
    assert line[:120] in error.value.message


def test_every_task_has_every_prompt_in_every_mode() -> None:
    tasks = [("a", [Prompt("1", "x"), Prompt("2", "y")]), ("b", [Prompt("1", "z")])]
    jobs = make_jobs([Arrival(float(i)) for i in range(8)], tasks, Lengths("5"), ("plain", "dart"), rng())
    assert [(job.task, job.prompt.text, job.mode) for job in jobs] == [
        ("a", "x", "plain"),
        ("b", "z", "plain"),
        ("a", "x", "dart"),
        ("b", "z", "dart"),
        ("a", "y", "plain"),
        ("b", "z", "plain"),
        ("a", "y", "dart"),
        ("b", "z", "dart"),
    ]


def test_percentiles_are_of_tokens_not_of_chunks() -> None:
    # One token after 1 s; three together 0.6 s later, so 0.2 s each; one 1 s after them.
    sample = Sample("t", "dart", chunks=[(1.0, 1), (1.6, 3), (2.6, 1)], finished=True, dart_rounds=2, accepted=3)
    assert sample.gaps() == pytest.approx([0.2, 0.2, 0.2, 1.0])
    figures = report([sample], 5.0, Target())["all"]
    assert figures["inter_token_ms"]["p50"] == pytest.approx(200.0)
    assert figures["ttft_ms"]["p99"] == pytest.approx(1000.0)
    assert (figures["tokens"], figures["tokens_per_s"], figures["accepted_per_round"]) == (5, 1.0, 1.5)


def test_goodput_counts_what_kept_both_targets() -> None:
    quick = Sample("t", "auto", chunks=[(0.1, 1), (0.2, 1)], finished=True)
    late = Sample("t", "auto", chunks=[(0.5, 1), (0.6, 1)], finished=True)
    slow = Sample("t", "auto", chunks=[(0.1, 1), (0.9, 1)], finished=True)
    failed = Sample("t", "auto", chunks=[(0.1, 1)], error="UNAVAILABLE")
    figures = report([quick, late, slow, failed], 2.0, Target(ttft=0.2, inter_token=0.2))["all"]
    assert (figures["good"], figures["goodput_requests_per_s"]) == (1, 0.5)
    assert figures["errors"] == {"UNAVAILABLE": 1}


def test_an_answer_without_tokens_has_no_time_to_its_first() -> None:
    samples = [Sample("t", "auto", finished=True), Sample("t", "auto", chunks=[(0.25, 1)], finished=True)]
    figures = report(samples, 1.0, Target())["all"]
    assert (figures["finished"], figures["ttft_ms"]["p99"]) == (2, 250.0)
    assert report(samples[:1], 1.0, Target())["all"]["ttft_ms"]["p50"] is None  # JSON knows no infinity


def test_errors_are_said_once_for_each_code() -> None:
    samples = [Sample("t", "auto") for _ in range(4)]
    for sample, (code, words) in zip(samples, [("A", "first"), ("B", "other"), ("A", "second")], strict=False):
        sample.fail(code, words)
    assert problems(samples) == ["A (2): first", "B (1): other"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of --rate, --trace and --clients"),
        (["--rate", "1", "--clients", "1"], "give one of --rate, --trace and --clients"),
        (["--rate", "-2"], "'--rate': -2.0"),
        (["--rate", "nan"], "'--rate': 'nan'"),
        (["--rate", "inf"], "'--rate': 'inf'"),
        (["--clients", "0"], "'--clients': 0"),
        (["--trace", "/nowhere.jsonl"], "--trace /nowhere.jsonl: cannot be read"),
        (["--clients", "1", "--prompts", "/nowhere.jsonl"], "--prompts /nowhere.jsonl: cannot be read"),
        (["--clients", "1", "--prompts", "{dir}/other/q.jsonl"], "{dir}/other/q.jsonl: another file is the task q"),
        (["--clients", "1", "--tokens", "9:8"], "--tokens: must be N, uniform"),
        (["--clients", "1", "--mode", "fast"], "'--mode': 'fast'"),
        (["--clients", "1", "--seed", "-1"], "'--seed': -1"),
        (["--clients", "1", "--temperature", "nan"], "'--temperature': 'nan'"),
        (["--clients", "1", "--ttft-target", "nan"], "'--ttft-target': 'nan'"),
        (["--clients", "1", "--token-target", "0"], "'--token-target': 0.0"),
        (["--clients", "1", "--pid", "0"], "'--pid': 0"),
        (["--clients", "1", "--pid", str(2**31 - 1)], f"--pid: there is no process {2**31 - 1}"),
        (["--clients", "1", "--target", ""], "--target: must be"),
        (["--clients", "1", "--plot", "{dir}/p.xyz"], "--plot: {dir}/p.xyz must end in one of"),
        (["--clients", "1", "--plot", "{dir}/p"], "--plot: {dir}/p must end in one of"),
        (["--clients", "1", "--plot", "{dir}/none/p.png"], "--plot: {dir}/none is no directory"),
        (["--clients", "1", "--plot", "{dir}/dir.png"], "--plot: {dir}/dir.png cannot be written"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "dir.png").mkdir()
    for file in (tmp_path / "q.jsonl", tmp_path / "other" / "q.jsonl"):
        file.write_text('{"prompt": "Hi"}\n')
    given = [argument.format(dir=tmp_path) for argument in arguments]
    assert main(["bench", "serve", "--prompts", str(tmp_path / "q.jsonl"), *given]) == 2
    out, err = capsys.readouterr()
    assert (out, err[:7], len(err.splitlines())) == ("", "error: ", 1)
    assert said.format(dir=tmp_path) in err


async def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "short questions.jsonl"
    file.write_text('{"prompt": "Hi"}\n{"prompt": "Ho"}\n')
    gateway = FakeGateway()
    async with serving(gateway) as address:
        common = ("bench", "serve", "--target", address, "--prompts", str(file), "--requests", "6")
        result = await dartspec(*common, "--clients", "2", "--tokens", "5", "--mode", "plain", "--mode", "dart")
        assert result.code == 0, result.err
        found = json.loads(result.out.splitlines()[-1])
        assert (found["all"]["finished"], found["all"]["tokens"], found["interrupted"]) == (6, 30, False)
        assert [(g["task"], g["mode"], g["finished"]) for g in found["groups"]] == [
            ("short-questions", "dart", 3),
            ("short-questions", "plain", 3),
        ]
        assert "short-questions" in result.err
        gateway.error = ResourceExhausted("full")
        result = await dartspec(*common, "--rate", "100")
        assert result.code == 1
        assert json.loads(result.out.splitlines()[-1])["all"]["errors"] == {"RESOURCE_EXHAUSTED": 6}
        assert result.err.splitlines()[-1] == "RESOURCE_EXHAUSTED (6): full"
