"""Heads on disk: what is written is what is read, and what does not fit is refused by name."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dartspec.services.common.errors import FailedPrecondition, NotFound
from dartspec.services.draft.checkpoint import load_head, save_head, with_target
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.target_info import TargetInfo

MakeHead = Callable[..., DraftHead]
PUBLIC_NAMES = {
    "fc.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight",
    "midlayer.post_attention_layernorm.weight",
    "midlayer.self_attn.q_proj.weight",
    "midlayer.self_attn.k_proj.weight",
    "midlayer.self_attn.v_proj.weight",
    "midlayer.self_attn.o_proj.weight",
    "midlayer.mlp.gate_proj.weight",
    "midlayer.mlp.up_proj.weight",
    "midlayer.mlp.down_proj.weight",
    "midlayer.mask_rep",
    "norm.weight",
    "lm_head.weight",
    "d2t",
    "t2d",
}


@pytest.fixture
def saved(tmp_path: Path, make_head: MakeHead, target: TargetInfo) -> Path:
    head = make_head(draft_vocab_size=20)
    ids = torch.arange(20) * 4 + 3
    head.d2t.copy_(ids - torch.arange(20))
    head.t2d.zero_()[ids] = True
    head.config = with_target(head.config, target)
    save_head(head, tmp_path / "head")
    return tmp_path / "head"


def edit(directory: Path, **changes: object) -> None:
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**values, **changes}))


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_round_trip_under_the_public_names(saved: Path, make_head: MakeHead, target: TargetInfo) -> None:
    loaded = load_head(saved, target)
    assert load_file(saved / "model.safetensors").keys() == PUBLIC_NAMES
    assert sorted(file.name for file in saved.iterdir()) == ["config.json", "model.safetensors"]
    original = make_head(draft_vocab_size=20)
    for name, parameter in original.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter), name
    assert loaded.target_ids().tolist() == list(range(3, 83, 4))
    assert loaded.config.feature_layers == (1, 3, 4)
    assert loaded.config.target_fingerprint == target.fingerprint


def test_a_missing_output_matrix_is_the_targets_rows(saved: Path, target: TargetInfo) -> None:
    rewrite(saved, lambda tensors: tensors.pop("lm_head.weight"))
    head = load_head(saved, target)
    assert torch.equal(head.lm_head.weight, target.lm_head[3:83:4])
    save_head(head, saved)
    assert "lm_head.weight" not in load_file(saved / "model.safetensors")


def test_the_whole_vocabulary_shares_the_targets_memory(
    tmp_path: Path, make_head: MakeHead, target: TargetInfo
) -> None:
    head = make_head()
    head.lm_head_is_target = True
    save_head(head, tmp_path)
    loaded = load_head(tmp_path, target)
    assert loaded.lm_head.weight.data_ptr() == target.lm_head.data_ptr()
    assert loaded.embedding.data_ptr() == target.embedding.data_ptr()


def test_embeddings_in_a_checkpoint_are_ignored(saved: Path, target: TargetInfo) -> None:
    rewrite(saved, lambda tensors: tensors.update({"embed_tokens.weight": torch.zeros(97, 32)}))
    assert torch.equal(load_head(saved, target).embedding, target.embedding)


def test_dtype_can_be_chosen(saved: Path, target: TargetInfo) -> None:
    head = load_head(saved, target, dtype=torch.bfloat16).to(torch.bfloat16)
    assert {parameter.dtype for parameter in head.parameters()} == {torch.bfloat16}
    assert head.embedding.dtype == torch.bfloat16
    assert head.inverse_frequencies.dtype == torch.float32
    assert head.d2t.dtype == torch.int64


def test_another_target_is_refused_by_both_names_unless_allowed(saved: Path, target: TargetInfo) -> None:
    other = dataclasses.replace(target, fingerprint="b" * 32, name="other")
    with pytest.raises(FailedPrecondition, match=f"{'a' * 32}.*other.*{'b' * 32}"):
        load_head(saved, other)
    assert load_head(saved, other, allow_other_target=True).config.target_fingerprint == "a" * 32


def test_a_head_that_names_no_target_warns(saved: Path, target: TargetInfo, caplog: pytest.LogCaptureFixture) -> None:
    edit(saved, target_fingerprint="")
    with caplog.at_level(logging.WARNING):
        load_head(saved, target)
    assert "does not say which target" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64, "target_hidden_size": 32}, "hidden_size is 64 but target 'tiny' has 32"),
        ({"vocab_size": 100}, "vocab_size is 100 but target 'tiny' has 97"),
        ({"intermediate_size": 40}, r"mlp.down_proj.weight has shape \[32, 48\], config.json asks for \[32, 40\]"),
        ({"draft_vocab_size": 98}, r"draft_vocab_size \(98\) exceeds vocab_size \(97\)"),
        ({"num_key_value_heads": 3}, "num_attention_heads .4. must be a multiple"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"feature_layers": [1, 3, 8]}, "feature_layers .1, 3, 8. do not exist"),
        ({"feature_layers": [1, 3, 1]}, "feature_layers names a layer twice"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling 'longrope' is not supported"),
    ],
)
def test_a_configuration_that_does_not_fit(saved: Path, target: TargetInfo, changes: dict, message: str) -> None:
    edit(saved, **changes)
    with pytest.raises(FailedPrecondition, match=message):
        load_head(saved, target)


def test_missing_parts_are_named(saved: Path, target: TargetInfo) -> None:
    rewrite(saved, lambda tensors: (tensors.pop("fc.weight"), tensors.pop("midlayer.mask_rep")))
    with pytest.raises(FailedPrecondition, match=r"lacks fc\.weight, midlayer\.mask_rep"):
        load_head(saved, target)
    (saved / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(FailedPrecondition, match=r"model.safetensors cannot be read"):
        load_head(saved, target)
    (saved / "model.safetensors").unlink()
    with pytest.raises(NotFound, match=r"model.safetensors does not exist"):
        load_head(saved, target)
    (saved / "config.json").write_text('{"vocab_size": 97}')
    with pytest.raises(FailedPrecondition, match=r"lacks .*hidden_size"):
        load_head(saved, target)
    with pytest.raises(NotFound, match="no such directory"):
        load_head(saved / "nowhere" / "else", target)


def test_a_draft_vocabulary_that_names_no_target_ids(saved: Path, target: TargetInfo) -> None:
    rewrite(saved, lambda tensors: tensors["d2t"].add_(90))
    with pytest.raises(FailedPrecondition, match="d2t must map to distinct target ids below 97"):
        load_head(saved, target)
    rewrite(saved, lambda tensors: tensors["d2t"].sub_(89))
    with pytest.raises(FailedPrecondition, match="t2d does not mark"):
        load_head(saved, target)


def test_an_attention_window_is_kept_and_left_out_where_there_is_none(make_config: Callable[..., HeadConfig]) -> None:
    assert HeadConfig.from_json(make_config(attention_window=256).to_json()).attention_window == 256
    assert "attention_window" not in make_config().to_json()
    with pytest.raises(FailedPrecondition, match="attention_window must not be negative, got -1"):
        make_config(attention_window=-1)


def test_public_rope_fields() -> None:
    values = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "draft_length": 7,
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
    }
    config = HeadConfig.from_json(values)
    assert (config.rope_theta, config.head_dim, config.num_key_value_heads) == (5000.0, 8, 4)
    head = DraftHead(config, torch.zeros(97, 32))
    expected = 5000.0 ** (-torch.arange(4) / 4) / 4.0
    torch.testing.assert_close(head.inverse_frequencies, expected)
    assert (config.depth, config.draft_vocab_size) == (8, 97)
