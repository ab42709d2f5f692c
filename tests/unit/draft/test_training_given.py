"""Going on from a head: its shape stands, its weights are where training begins, and another one is noticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dartspec.services.common.errors import FailedPrecondition, InvalidArgument
from dartspec.services.draft.checkpoint import load_head, save_head
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train.given import FIXED, given_head, given_settings, weights_fingerprint
from dartspec.services.draft.train.settings import TrainSettings

from .tiny_given import VOCABULARY, given_run, tiny_head, tiny_trainer
from .tiny_training import tiny_settings, tiny_target


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_head(tmp_path_factory.mktemp("plain") / "head")


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_head(tmp_path_factory.mktemp("scored") / "head", rank=4)


def config_of(directory: Path) -> HeadConfig:
    return HeadConfig.from_file(directory / "config.json")


def tiny_info() -> TargetInfo:
    return TargetInfo.from_model(tiny_target(), "tiny")


def test_the_head_decides_its_shape() -> None:
    model = config_of_values(feature_layers=(0, 2, 4), draft_length=2, attention_window=0, shift=False)
    settings = given_settings(model, TrainSettings(gamma=0.7, transition_rank=5))
    assert (settings.feature_layers, settings.draft_length, settings.draft_vocab) == ("0,2,4", 2, 30)
    assert (settings.attention_window, settings.shift) == (0, False)
    assert (settings.gamma, settings.transition_rank) == (0.7, 5)
    scored = dataclasses.replace(model, transition_rank=4)
    assert given_settings(scored, TrainSettings()).transition_rank == 4
    assert given_settings(scored, TrainSettings(transition_rank=4), {"transition_rank"}).transition_rank == 4


def config_of_values(**changes: object) -> HeadConfig:
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    return HeadConfig.from_json({**sizes, "max_position_embeddings": 64, "draft_vocab_size": 30, **changes})


@pytest.mark.parametrize("name", FIXED)
def test_what_the_head_decides_is_refused_by_name(name: str, plain: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"{name}: the given head decides it") as caught:
        given_settings(config_of(plain), TrainSettings(), {"gamma", name})
    assert caught.value.field == name


@pytest.mark.parametrize("rank", [0, 3])
def test_a_score_of_another_rank_is_refused(rank: int, scored: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"score has rank 4, got {rank}") as caught:
        given_settings(config_of(scored), TrainSettings(transition_rank=rank), {"transition_rank"})
    assert caught.value.field == "transition_rank"


def test_a_new_score_is_zero_but_can_learn(plain: Path) -> None:
    settings = given_settings(config_of(plain), tiny_settings(transition_rank=16), {"transition_rank"})
    head, _ = given_head(plain, tiny_info(), settings)
    assert head.transition is not None
    assert head.config.transition_rank == 16
    assert float(head.transition.left.std()) == pytest.approx(0.02, rel=0.15)
    assert not head.transition.right.any()
    again, _ = given_head(plain, tiny_info(), settings)
    assert again.transition is not None
    assert torch.equal(again.transition.left, head.transition.left)
    for name, value in load_file(plain / "model.safetensors").items():
        assert torch.equal(head.state_dict()[name].to(value.dtype), value), name


def test_a_score_is_gone_on_from(scored: Path) -> None:
    trainer = tiny_trainer(scored, tiny_settings())
    source = load_file(scored / "model.safetensors")
    for name in ("transition.left", "transition.right"):
        assert torch.equal(trainer.trained[name], source[name].float())
        assert trainer.trained[name].is_contiguous()  # however inference wants it to lie


def test_what_was_measured_of_the_given_head_is_not_said_of_the_new_one(plain: Path, tmp_path: Path) -> None:
    head = load_head(plain, tiny_info())
    head.config = dataclasses.replace(head.config, accepted_per_round=1.5, target_fingerprint="", feature_layers=())
    save_head(head, tmp_path, torch.bfloat16)
    found, _ = given_head(tmp_path, tiny_info(), given_settings(config_of(tmp_path), TrainSettings()))
    assert found.config == config_of(plain)


@pytest.mark.parametrize("own_output", [False, True])
def test_everything_goes_on_from_its_weights_and_lowers_the_loss(own_output: bool, tmp_path: Path) -> None:
    given = tiny_head(tmp_path / "given", own_output=own_output)
    run = given_run(tmp_path / "out", given, tiny_settings(24))
    source = load_file(given / "model.safetensors")
    assert torch.equal(run.trainer.head.target_ids(), VOCABULARY)
    assert run.trainer.trained.keys() == source.keys() - {"lm_head.weight", "d2t", "t2d"}
    for name, parameter in run.trainer.trained.items():
        assert torch.equal(parameter, source[name].float()), name
    losses = [run.trainer.train_step() for _ in range(24)]
    assert np.mean(losses[-5:]) < 0.85 * np.mean(losses[:5])
    run._save(run._measure())
    saved = load_file(tmp_path / "out/model.safetensors")
    assert saved.keys() == source.keys()
    same = {name for name, value in saved.items() if torch.equal(value, source[name])}
    assert same == {"d2t", "t2d"} | ({"lm_head.weight"} if own_output else set())


def test_a_trained_output_matrix_begins_with_the_heads_own(tmp_path: Path) -> None:
    given = tiny_head(tmp_path, own_output=True)
    trainer = tiny_trainer(given, tiny_settings(output="trained"))
    own = load_file(given / "model.safetensors")["lm_head.weight"].float()
    assert torch.equal(trainer.trained["lm_head.weight"], own)
    trainer.train_step()
    assert not torch.equal(trainer.trained["lm_head.weight"], own)


def test_another_head_or_rank_is_refused_on_resume(plain: Path, scored: Path, tmp_path: Path) -> None:
    settings = tiny_settings(2, train="transition", transition_rank=4)
    given_run(tmp_path / "out", plain, settings).train(progress=False)
    assert given_run(tmp_path / "out", plain, settings).resume()
    other = given_run(tmp_path / "out", tiny_head(tmp_path / "other", seed=1), settings)
    with pytest.raises(FailedPrecondition, match="the checkpoint has another head; give the same, --resume changed"):
        other.resume()
    assert other.resume(allow_changes=True)
    assert other.trainer.step == 2
    with pytest.raises(FailedPrecondition, match="the checkpoint has another head; "):
        given_run(tmp_path / "out", scored, tiny_settings(2, train="transition")).resume()
    wider = given_run(tmp_path / "out", plain, dataclasses.replace(settings, transition_rank=5))
    with pytest.raises(FailedPrecondition, match="the checkpoint has another transition_rank; "):
        wider.resume()
    with pytest.raises(FailedPrecondition, match="trained other weights or shapes"):
        wider.resume(allow_changes=True)
    everything = given_run(tmp_path / "out", plain, dataclasses.replace(settings, train="all"))
    with pytest.raises(FailedPrecondition, match="the checkpoint has another train; "):
        everything.resume()


def test_states_older_than_these_settings_go_on(plain: Path) -> None:
    trainer = tiny_trainer(plain, tiny_settings())
    trainer.given = ""
    trainer.train_step()
    state = trainer.state()
    del state["given"], state["settings"]["train"]
    later = tiny_trainer(plain, tiny_settings())
    later.given = ""
    later.load(state)
    assert later.step == 1


def test_the_fingerprint_counts_every_bit_of_the_heads_own_weights(plain: Path, tmp_path: Path) -> None:
    head = load_head(plain, tiny_info(), dtype=torch.float32)
    name = weights_fingerprint(head)
    assert name == weights_fingerprint(load_head(plain, tiny_info(), dtype=torch.float32))
    head.config = dataclasses.replace(head.config, accepted_per_round=1.5)
    head.lm_head.weight = torch.nn.Parameter(head.lm_head.weight + 1.0, requires_grad=False)  # the target's
    assert weights_fingerprint(head) == name
    head.lm_head_is_target = False
    assert weights_fingerprint(head) != name
    tensors = load_file(plain / "model.safetensors")
    tensors["midlayer.mask_rep"].view(torch.int16)[3] ^= 1
    save_head(head, tmp_path)
    (tmp_path / "config.json").write_text((plain / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors")
    assert weights_fingerprint(load_head(tmp_path, tiny_info(), dtype=torch.float32)) != name
