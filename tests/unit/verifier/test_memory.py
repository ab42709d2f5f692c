"""The memory budget: every part counted, nothing beyond it, and a refusal that says what to change."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.verifier import linear
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.kv_cache import SLOT_BLOCK
from dartspec.services.verifier.loader import target_from_model
from dartspec.services.verifier.memory import MIB, Demand, Limits, check_fit
from dartspec.services.verifier.replica import load_replica

from .tiny import CONTEXT, MAX_NODES, tiny_decoder

ROOT = Path(__file__).resolve().parents[3]
LIMITS = Limits(max_sessions=8, max_nodes=MAX_NODES, context_length=CONTEXT, measured_rows=257)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


@pytest.fixture(scope="module")
def demand(decoder: Decoder) -> Demand:
    assert decoder.proposer is not None
    return Demand(decoder.target, decoder.proposer.head, LIMITS)


def test_positions_are_the_most_that_fit(demand: Demand) -> None:
    nothing = demand.at(0).total
    assert demand.positions(nothing) == demand.positions(0) == 0
    for more in (1, 600_000, 1_000_000, 7_654_321, 123_456_789):
        positions = demand.positions(nothing + more)
        assert positions % SLOT_BLOCK == 0
        assert demand.at(positions).total <= nothing + more < demand.at(positions + SLOT_BLOCK).total


def test_caches_are_what_a_region_of_that_size_holds(decoder: Decoder, demand: Demand) -> None:
    proposer = decoder.proposer
    assert proposer is not None
    pool = tiny_decoder().target.pool
    pool.limit = 7 * SLOT_BLOCK
    region = pool.new_cache(1).region
    draft = region.draft_rows(proposer.config, proposer.head.fc.weight.dtype)
    parts = demand.at(7 * SLOT_BLOCK)
    assert parts.target_cache == region.data.nbytes
    assert parts.head_cache == draft.head.nbytes + draft.ends.nbytes + draft.waiting.nbytes
    assert Demand(decoder.target, None, LIMITS).at(7 * SLOT_BLOCK).head_cache == 0


def test_kernels_are_counted_where_weights_are_packed_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny_decoder()
    if decoder.target.lm_head.plain is None:
        assert Demand(decoder.target, None, LIMITS).at(0).kernels > 0
    monkeypatch.setattr(linear, "_pack", lambda weight: None)
    plain = tiny_decoder()
    assert plain.target.lm_head.plain is not None
    assert Demand(plain.target, None, LIMITS).at(0).kernels == 0


@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_those_of_the_model(tied: bool) -> None:
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config)
    own = sum(parameter.nbytes for parameter in model.parameters())  # a tied matrix is one parameter
    target = target_from_model(model, "tiny").target
    rope = 2 * 64 * 8 * 4
    # Packed for the processor, a tied output matrix is a second copy.
    copies = 100 * 32 * 4 if tied and target.lm_head.plain is None else 0
    assert Demand(target, None, LIMITS).at(0).target_weights == own + rope + copies


def test_more_of_anything_needs_more(decoder: Decoder, demand: Demand) -> None:
    least = demand.at(1 << 16)
    for name, part in (
        ("max_sessions", "logits"),
        ("max_sessions", "activations"),
        ("max_nodes", "logits"),
        ("max_nodes", "attention"),
        ("context_length", "attention"),
        ("measured_rows", "logits"),
    ):
        values = {**LIMITS.__dict__, name: 4 * LIMITS.__dict__[name]}
        assert getattr(Demand(decoder.target, None, Limits(**values)).at(1 << 16), part) > getattr(least, part)


def test_a_refusal_lists_all_parts_and_what_to_change(demand: Demand) -> None:
    parts = demand.at(SLOT_BLOCK)
    check_fit(parts, parts.total, "memory")
    with pytest.raises(FailedPrecondition) as caught:
        check_fit(parts, parts.total - 1, "memory")
    message = caught.value.message
    for name in ("target weights", "head weights", "target cache", "head cache", "logits", "activations", "attention"):
        assert f"{name} " in message
    assert f"target cache {parts.target_cache / MIB:.1f} MiB" in message
    for setting in ("--memory", "--kv-positions", "--max-sessions", "--budget", "--context-length"):
        assert setting in message
    assert caught.value.field == "memory"


@pytest.mark.parametrize("prefix_reuse", ["on", "off"])
def test_a_loaded_verifier_keeps_to_its_settings(tmp_path: Path, prefix_reuse: str) -> None:
    made = pytest.importorskip("tests.integration.tiny_model").make_tiny_model(tmp_path)
    settings = VerifierSettings(
        model=str(made.model), head=str(made.head), memory="1G", max_sessions=4, prefix_reuse=prefix_reuse
    )
    replica = load_replica(settings)
    pool, admission = replica.decoder.target.pool, replica.admission
    limits = Limits(4, admission.max_nodes, admission.context_length, 257)
    demand = Demand(replica.decoder.target, replica.head, limits)
    assert admission.kv_positions == pool.limit == pool.regions[0].positions == demand.positions(1 << 30)
    # Nothing is left of the passes before readiness.
    assert pool.taken == 0
    assert not pool.regions[0].used.any()
    assert (admission.prefixes is None) == (prefix_reuse == "off")
    with pytest.raises(FailedPrecondition, match=r"memory: .*target weights .*kernels .*64\.0 MiB are there"):
        load_replica(replace(settings, memory="64M"))
    with pytest.raises(FailedPrecondition, match=r"kv_positions: .* are there"):
        load_replica(replace(settings, kv_positions=1 << 24))


def in_use(*settings: str) -> dict[str, int]:
    result = subprocess.run(
        [sys.executable, "-m", "tests.unit.verifier.memory_in_use", *settings],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@LINUX
def test_a_verifier_with_all_slots_full_takes_what_was_counted(tmp_path: Path) -> None:
    tiny_model = pytest.importorskip("tests.integration.tiny_model")
    made = tiny_model.make_tiny_model(tmp_path)
    found = in_use(
        f"model={made.model}", f"head={made.head}", "memory=2G", "max_sessions=64", "context_length=256", "invariant=on"
    )
    assert 0.85 * found["estimate"] <= found["used"] <= found["estimate"] <= 2 << 30, found


@LINUX
@pytest.mark.smollm2
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_so_does_smollm2(dtype: str) -> None:
    found = in_use(
        *("model=smollm2-135m", f"head={ROOT / 'models' / 'smollm2-135m'}", f"dtype={dtype}"),
        *("memory=3500M", "max_sessions=16", "context_length=1024"),
    )
    assert 0.85 * found["estimate"] <= found["used"] <= found["estimate"] <= 3500 << 20, found
