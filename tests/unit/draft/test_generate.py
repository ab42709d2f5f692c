"""The target's own text: the batched writer equals one-at-a-time decoding, and a killed run is continued."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dartspec.services.draft.train.generate import Writer, WritingTask, finished_tasks, write_shard

STOP = 5


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=31,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


def greedy(model: LlamaForCausalLM, prompt: list[int], max_new: int) -> list[int]:
    """Decode without any cache."""
    tokens = list(prompt)
    model.set_attn_implementation("sdpa")
    while len(tokens) < len(prompt) + max_new and (len(tokens) == len(prompt) or tokens[-1] != STOP):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_rows_of_different_lengths_equal_decoding_alone(model: LlamaForCausalLM) -> None:
    generator = torch.Generator().manual_seed(1)
    tasks = [
        WritingTask(i, tuple(torch.randint(6, 31, (1 + i % 7,), generator=generator).tolist()), 0.0) for i in range(14)
    ]
    expected = {task.index: greedy(model, list(task.prompt), 12) for task in tasks}
    writer = Writer(model, frozenset({STOP}), rows=4, max_new=12, capacity=64, seed=0)
    written = {task.index: answer for task, answer in writer.write(tasks)}
    assert written == expected
    assert len({len(answer) for answer in expected.values()}) > 1  # some stop early, so rows are refilled in between


def test_sampled_tokens_follow_the_softmax_at_each_rows_temperature(model: LlamaForCausalLM) -> None:
    writer = Writer(model, frozenset({STOP}), rows=1, max_new=1, capacity=8, seed=3)
    logits = 2 * torch.randn(31, generator=torch.Generator().manual_seed(0))
    temperatures = [0.0, 1.0, 2.0] * 3000
    drawn = torch.tensor(writer._sample(logits.expand(9000, 31), temperatures)).view(3000, 3)
    assert set(drawn[:, 0].tolist()) == {int(logits.argmax())}
    for column, temperature in ((1, 1.0), (2, 2.0)):
        expected = 3000 * torch.softmax(logits / temperature, -1)
        observed = torch.bincount(drawn[:, column], minlength=31)
        likely = expected > 5
        chi_square = ((observed - expected) ** 2 / expected)[likely].sum()
        # mean is the number of cells, standard deviation the root of twice that; the seed is fixed
        assert chi_square < likely.sum() + 4 * (2 * likely.sum()) ** 0.5


def test_a_torn_shard_is_cut_and_continued(model: LlamaForCausalLM, tmp_path: Path) -> None:
    shard = tmp_path / "shard.jsonl"
    tasks = [WritingTask(i, (6 + i, 7), 0.0) for i in range(6)]
    writer = Writer(model, frozenset({STOP}), rows=2, max_new=5, capacity=32, seed=0)
    write_shard(writer, tasks[:3], shard)
    whole = shard.read_text()
    shard.write_text(whole + '{"i": 3, "p": [9')
    assert finished_tasks(shard) == {0, 1, 2}
    assert shard.read_text() == whole
    write_shard(writer, tasks, shard)
    records = [json.loads(line) for line in shard.read_text().splitlines()]
    assert sorted(record["i"] for record in records) == [0, 1, 2, 3, 4, 5]
    assert all(record["o"] == greedy(model, record["p"], 5) for record in records)
