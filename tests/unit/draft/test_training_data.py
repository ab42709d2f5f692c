"""Texts, draft vocabulary, and the teacher cache against the target run one text at a time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train.data import Text, choose_vocabulary, read_texts, save_corpus, split_held_out
from dartspec.services.draft.train.initial import head_config, initial_head
from dartspec.services.draft.train.simulate import evaluate
from dartspec.services.draft.train.teacher import LiveTeacher, TeacherCache, build, open_or_build


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    random = np.random.default_rng(0)
    return [Text(tuple(random.integers(0, 40, int(length)).tolist()), 3, 0.0) for length in random.integers(12, 30, 12)]


@pytest.fixture(scope="module")
def cache(model: LlamaForCausalLM, texts: list[Text], tmp_path_factory: pytest.TempPathFactory) -> TeacherCache:
    return build(model, texts, (1, 2, 3), 5, tmp_path_factory.mktemp("teacher") / "cache")


def test_the_cache_holds_features_and_teacher_of_the_plain_forward_pass(
    model: LlamaForCausalLM, texts: list[Text], cache: TeacherCache
) -> None:
    assert len(cache) == len(texts)
    for index, text in enumerate(texts):
        with torch.no_grad():
            output = model(torch.tensor([text.tokens]), output_hidden_states=True)
        stored = cache[index]
        assert tuple(stored.tokens.tolist()) == text.tokens
        features = torch.cat([output.hidden_states[layer + 1][0] for layer in (1, 2, 3)], -1)
        torch.testing.assert_close(stored.features.float(), features, rtol=1e-2, atol=1e-2)
        probs = output.logits[0].softmax(-1)
        for position in range(2, len(text.tokens)):
            assert stored.teacher_ids[position].tolist() == probs[position].topk(5).indices.tolist()
            torch.testing.assert_close(
                stored.teacher_probs[position], probs[position].topk(5).values, rtol=2e-3, atol=1e-5
            )
        assert stored.teacher_probs[:2].abs().max() == 0


def test_a_live_teacher_gives_what_the_cache_holds_unrounded(
    model: LlamaForCausalLM, texts: list[Text], cache: TeacherCache
) -> None:
    numbers = [7, 2, 7, 11]
    live = LiveTeacher(model, texts, (1, 2, 3), 5)
    assert live.sizes == cache.sizes
    for mine, stored in zip(live.batch(numbers), cache.batch(numbers), strict=True):
        assert mine.tokens.tolist() == stored.tokens.tolist()
        assert mine.features.dtype == torch.float32
        assert mine.teacher_ids.tolist() == stored.teacher_ids.tolist()
        torch.testing.assert_close(mine.features.bfloat16(), stored.features)
        torch.testing.assert_close(mine.teacher_probs, stored.teacher_probs, rtol=1e-3, atol=1e-5)


def test_a_cache_of_something_else_is_refused(model: LlamaForCausalLM, texts: list[Text], tmp_path: Path) -> None:
    build(model, texts, (1, 2, 3), 5, tmp_path / "cache", "target")
    assert len(open_or_build(model, texts, (1, 2, 3), 5, tmp_path / "cache", "target")) == len(texts)
    for changed in (
        (texts[1:], (1, 2, 3), 5, "target"),
        (texts, (0, 2, 3), 5, "target"),
        (texts, (1, 2, 3), 5, "other"),
    ):
        with pytest.raises(FailedPrecondition, match="another --cache, or delete this one"):
            open_or_build(model, *changed[:3], tmp_path / "cache", changed[3])


def test_evaluation_counts_what_the_proposer_would_hit(model: LlamaForCausalLM, cache: TeacherCache) -> None:
    target = TargetInfo.from_model(model, "tiny")
    head = initial_head(model, target, head_config(model, target, 3, 40), torch.arange(40)).requires_grad_(False)
    proposer = Proposer(head)
    hits, seen = np.zeros(4), np.zeros(4)
    for index in range(len(cache)):
        text = cache[index]
        for n in range(3, len(text.tokens) - 1):
            entry = DraftInput(proposer.new_cache(), text.features[:n].float(), text.tokens[1 : n + 1])
            (proposals,) = proposer.propose([entry], 1)
            for offset, truth in enumerate(text.tokens[n + 1 : n + 5].tolist()):
                hits[offset] += proposals.token_ids[offset][0] == truth
                seen[offset] += 1
    evaluation = evaluate(head, cache)
    np.testing.assert_allclose(evaluation.hit1, hits / seen, atol=0.01)
    assert evaluation.positions == seen[0]
    assert evaluation.hit1[0] <= evaluation.hit10[0]
    assert 1.0 <= evaluation.chain <= evaluation.tree_16 <= evaluation.tree_59


def test_a_two_layer_deep_initial_head_applies_the_targets_norm_once(model: LlamaForCausalLM) -> None:
    target = TargetInfo.from_model(model, "tiny")
    head = initial_head(model, target, head_config(model, target, 3, 40), torch.arange(40))
    hidden = torch.randn(5, 32)
    with torch.no_grad():
        torch.testing.assert_close(head.norm(head.norm(hidden)), model.model.norm(hidden), rtol=1e-3, atol=1e-3)


def test_reading_drops_duplicates_cuts_and_names_bad_lines(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    records = [
        {"p": [1, 2], "o": [3, 4, 5, 6], "t": 0.0},
        {"p": [1, 2], "o": [3, 4, 5, 6]},
        {"p": [1, 2, 3, 4], "o": [9]},
    ]
    plain.write_text("".join(json.dumps(record) + "\n" for record in records))
    with gzip.open(packed, "wt") as file:
        file.write(json.dumps({"p": [7], "o": [8, 9]}) + "\n")
    texts = read_texts([plain, packed], 5)
    assert texts == [Text((1, 2, 3, 4, 5), 2, 0.0), Text((7, 8, 9), 1, 0.6)]
    plain.write_text('{"p": [1], "o": [2, 3]}\n{"p": [1]}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl:2: not a JSON object with 'p' and 'o'"):
        read_texts([plain], 5)


def test_held_out_prompts_keep_all_their_answers_together() -> None:
    texts = [Text((prompt, 50, answer, 1), 2, 0.0) for prompt in range(200) for answer in range(3)]
    training, held_out = split_held_out(texts, 10)
    assert len(training) + len(held_out) == 600
    assert 5 * 3 <= len(held_out) <= 50 * 3
    assert not {text.tokens[0] for text in training} & {text.tokens[0] for text in held_out}


def test_vocabulary_is_what_answers_use_then_prompts_then_low_ids() -> None:
    texts = [Text((30, 30, 20, 20, 21), 2, 0.0), Text((31, 5, 39), 2, 0.0)]
    assert choose_vocabulary(texts, 3, 40).tolist() == [20, 21, 39]
    # 30 is seen twice in prompts, 5 and 31 once
    assert choose_vocabulary(texts, 6, 40).tolist() == [5, 20, 21, 30, 31, 39]
    assert choose_vocabulary(texts, 9, 40).tolist() == [0, 1, 2, 5, 20, 21, 30, 31, 39]
    assert choose_vocabulary(texts, 100, 40).tolist() == list(range(40))


def test_corpus_round_trip(tmp_path: Path) -> None:
    save_corpus([Text((1, 2, 3), 1, 0.0), Text((49151, 4), 1, 0.0)], tmp_path / "corpus.npz")
    stored = np.load(tmp_path / "corpus.npz")
    assert stored["tokens"].tolist() == [1, 2, 3, 49151, 4]
    assert stored["tokens"].dtype == np.uint16
    assert stored["offsets"].tolist() == [0, 3, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.npz"]
    with pytest.raises(ValueError, match="70000 does not fit 16 bits"):
        save_corpus([Text((70000, 1), 1, 0.0)], tmp_path / "big.npz")


def test_the_fingerprint_names_weights_not_their_dtype(model: LlamaForCausalLM) -> None:
    target = TargetInfo.from_model(model)
    half = TargetInfo.from_model(LlamaForCausalLM(model.config).to(torch.bfloat16))
    assert half.fingerprint != target.fingerprint  # other random weights
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    assert TargetInfo.from_model(copy.to(torch.bfloat16)).fingerprint == target.fingerprint
    assert target.feature_layers == (1, 2, 3)
