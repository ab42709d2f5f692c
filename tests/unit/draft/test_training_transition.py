"""`train transition`: the score learns as in full training, all else stays to the bit, interrupted or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.draft.train.data import Text
from dartspec.services.draft.train.loss import OutputKL
from dartspec.services.draft.train.sampling import Sampler
from dartspec.services.draft.train.settings import check_trained
from dartspec.services.draft.train.teacher import LiveTeacher
from dartspec.services.draft.train.train import Trainer

from .tiny_given import given_run, tiny_head, tiny_trainer
from .tiny_training import kill_after_first_point, same_bits, tiny_settings, tiny_target

SCORE = ("transition.left", "transition.right")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_head(tmp_path_factory.mktemp("scored") / "head", rank=4)


@pytest.mark.parametrize("own_output", [False, True])
def test_only_the_score_changes_and_the_loss_falls(own_output: bool, tmp_path: Path) -> None:
    given = tiny_head(tmp_path / "given", own_output=own_output)
    settings = tiny_settings(40, train="transition", transition_rank=8, rate=5e-2, deep_share=1.0)
    run = given_run(tmp_path / "out", given, settings)
    trainer = run.trainer
    before = {name: value.clone() for name, value in trainer.head.state_dict().items()}
    batch = trainer.prepare(trainer.sampler.next_pass())
    first = trainer.loss(trainer.hidden(batch), batch).detach()
    for _ in range(40):
        trainer.train_step()
    assert trainer.loss(trainer.hidden(batch), batch).detach() < 0.9 * first
    for name, value in trainer.head.state_dict().items():
        assert torch.equal(value, before[name]) == (name not in SCORE), name
    run._save(run._measure())
    saved, source = load_file(tmp_path / "out/model.safetensors"), load_file(given / "model.safetensors")
    assert saved.keys() - source.keys() == set(SCORE)
    assert ("lm_head.weight" in saved) == own_output
    for name, value in source.items():
        assert saved[name].dtype == value.dtype
        assert torch.equal(saved[name], value), name


def test_its_gradient_is_that_of_training_everything(scored: Path) -> None:
    # all offsets: what is compared is then more than the shallow ones
    alone = tiny_trainer(scored, tiny_settings(train="transition", deep_share=1.0))
    whole = tiny_trainer(scored, tiny_settings(deep_share=1.0))
    batch = alone.prepare(alone.sampler.next_pass())
    assert not batch.wanted[:, 0].any()
    assert batch.wanted.any(-1).all()
    hidden = alone.hidden(batch)
    assert not hidden.requires_grad
    alone.loss(hidden, batch).backward()
    everything = whole.prepare(whole.sampler.next_pass())
    assert int(everything.wanted[:, 1:].sum()) == len(hidden)
    whole.loss(whole.hidden(everything), everything).backward()
    for name, parameter in alone.head.named_parameters():
        if name not in SCORE:
            assert parameter.grad is None, name
            continue
        theirs = whole.head.get_parameter(name).grad
        assert parameter.grad is not None
        assert theirs is not None
        assert theirs.abs().max() > 1e-4
        torch.testing.assert_close(parameter.grad, theirs, rtol=1e-4, atol=1e-7)


def test_the_loss_computes_no_gradient_that_nobody_wants() -> None:
    torch.manual_seed(0)
    normed, matrix, weights = torch.randn(8, 6), torch.randn(11, 6), torch.rand(8)
    ids, probs = torch.stack([torch.randperm(11)[:4] for _ in range(8)]), torch.full((8, 4), 0.25)
    left, right = torch.randn(8, 2, requires_grad=True), torch.randn(2, 11, requires_grad=True)
    value = OutputKL.apply(normed, matrix, ids, probs, weights, left, right)
    of_rows, of_matrix, *of_score = value.grad_fn.saved_tensors
    assert of_rows is None
    assert of_matrix is None
    expected = torch.autograd.grad(
        OutputKL.apply(normed.requires_grad_(), matrix, ids, probs, weights, left, right), (left, right)
    )
    for gradient, wanted in zip(of_score, expected, strict=True):
        assert torch.equal(gradient, wanted)


def test_passes_hold_the_same_offsets_but_the_first() -> None:
    sizes = [(12, 3), (9, 4), (30, 5), (6, 4)]  # the last has offset 1 only
    settings = {"prefixes": 10, "per_text": 6, "shallow_depth": 2, "deep_share": 0.3}
    alone = Sampler(sizes, tiny_settings(train="transition", **settings), 4)
    whole = Sampler(sizes, tiny_settings(**settings), 4)
    for _ in range(12):
        ours = {(entry.text, n): row for entry in alone.next_pass() for n, row in _rows(entry)}
        theirs = {(entry.text, n): row for entry in whole.next_pass() for n, row in _rows(entry)}
        assert ours == {key: [0.0, *row[1:]] for key, row in theirs.items() if any(row[1:])}


def _rows(entry: object) -> list[tuple[int, list[float]]]:
    return list(zip(entry.prefixes.tolist(), entry.weights.tolist(), strict=True))  # type: ignore[attr-defined]


def test_a_pass_with_nothing_to_train_changes_nothing(scored: Path) -> None:
    trainer = tiny_trainer(scored, tiny_settings(train="transition"))
    source = LiveTeacher(tiny_target(), [Text((1, 2, 3, 7, 8), 3, 0.0)], trainer.head.config.feature_layers, 5)
    idle = Trainer(trainer.head, source, trainer.settings)
    before = {name: value.clone() for name, value in idle.head.state_dict().items()}
    assert idle.train_step() == 0.0
    assert idle.step == 1
    for name, value in idle.head.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_killed_and_resumed_run_is_the_uninterrupted_one_bit_for_bit(scored: Path, tmp_path: Path) -> None:
    settings = tiny_settings(train="transition")
    uninterrupted = given_run(tmp_path / "one", scored, settings)
    uninterrupted.train(progress=False)
    root, curve = Path(__file__).resolve().parents[3], tmp_path / "two/curve.jsonl"
    command = [sys.executable, "-m", "tests.unit.draft.tiny_given", str(tmp_path / "two"), str(scored)]
    variables = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=variables, cwd=root)
    kill_after_first_point(process, curve)
    resumed = given_run(tmp_path / "two", scored, settings)
    assert resumed.resume()
    assert resumed.trainer.step == 2
    resumed.train(progress=False)
    assert tuple(resumed.trainer.state()["weights"]) == SCORE
    same_bits(resumed, uninterrupted)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "no transition score to train; give --transition-rank"),
        ({"transition_rank": 4, "draft_length": 0}, "one offset has no transitions"),
        ({"transition_rank": 4, "output": "trained"}, "leave out --output trained"),
    ],
)
def test_what_leaves_nothing_to_train_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        check_trained(tiny_settings(train="transition", **changes))
    assert caught.value.field == "train"
    check_trained(tiny_settings(**changes))


def test_a_trainer_refuses_a_head_without_a_score(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no transition score to train"):
        tiny_trainer(tiny_head(tmp_path), tiny_settings(train="transition"))
