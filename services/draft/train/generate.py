"""Text that the target itself writes: continuous batching over a fixed number of rows, any temperature per row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm
from transformers import AttentionInterface, PreTrainedModel


@dataclass(frozen=True)
class WritingTask:
    """One text to write: `prompt` token ids, answered at `temperature`; `index` names it in the shard, for resuming."""

    index: int
    prompt: tuple[int, ...]
    temperature: float


@dataclass
class _Row:
    task: WritingTask
    length: int  # tokens in the KV cache
    pending: int
    answer: list[int]


class RowCache:
    """Keys and values of `rows` independent texts of up to `capacity` tokens, used by the attention function."""

    def __init__(self, model: PreTrainedModel, rows: int, capacity: int):
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, capacity, head_dim)
        self.keys = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.values = torch.zeros_like(self.keys)

    def move(self, source: int, destination: int, length: int) -> None:
        """Copy one row's first `length` entries to another row."""
        self.keys[:, destination, :, :length] = self.keys[:, source, :, :length]
        self.values[:, destination, :, :length] = self.values[:, source, :, :length]


@dataclass(frozen=True)
class RowPass:
    """What one forward pass covers: either one new token in each of `rows` rows, or one row's whole prompt."""

    cache: RowCache
    rows: Tensor | int
    lengths: Tensor  # [B] tokens already cached, per row
    visible: Tensor | None  # [B, 1, 1, T] additive mask over cached keys; None for a prompt


def _row_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    step: RowPass = kwargs["row_pass"]
    layer, scale = int(module.layer_idx), kwargs.get("scaling")  # type: ignore[arg-type]
    keys, values = step.cache.keys[layer], step.cache.values[layer]  # [rows, kv, capacity, D]
    batch, heads, length, head_dim = query.shape
    if step.visible is None:
        keys[step.rows, :, :length], values[step.rows, :, :length] = key[0], value[0]
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=heads != key.shape[1]
        )
        return mixed.transpose(1, 2), None
    index = torch.arange(batch, device=query.device)
    keys[index, :, step.lengths], values[index, :, step.lengths] = key[:, :, 0], value[:, :, 0]
    window = step.visible.shape[-1]
    grouped = query.view(batch, keys.shape[1], -1, head_dim)  # queries that share a key head form its query rows
    mask = step.visible.expand(batch, 1, grouped.shape[2], window)
    mixed = functional.scaled_dot_product_attention(
        grouped, keys[:batch, :, :window], values[:batch, :, :window], attn_mask=mask, scale=scale
    )
    return mixed.reshape(batch, 1, heads, head_dim), None


AttentionInterface.register("dartspec_rows", _row_attention)


class Writer:
    """Answers tasks in `rows` parallel rows; a row that ends is refilled at once, so the batch stays full."""

    def __init__(
        self, model: PreTrainedModel, stop_ids: frozenset[int], rows: int, max_new: int, capacity: int, seed: int
    ):
        model.set_attn_implementation("dartspec_rows")
        self.model, self.stop_ids, self.max_new, self.capacity = model, stop_ids, max_new, capacity
        self.cache = RowCache(model, rows, capacity)
        self.row_count = rows
        self.generator = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def write(self, tasks: Iterable[WritingTask]) -> Iterator[tuple[WritingTask, list[int]]]:
        """Yield (task, answer ids) as texts end: at a stop id (kept), after `max_new` tokens, or at the capacity."""
        waiting = iter(tasks)
        rows: list[_Row] = []
        while True:
            while len(rows) < self.row_count:
                task = next(waiting, None)
                if task is None:
                    break
                if 0 < len(task.prompt) < self.capacity:
                    rows.append(self._prefill(task, len(rows)))
            if not rows:
                return
            self._step(rows)
            for number in reversed(range(len(rows))):
                row = rows[number]
                if row.answer[-1] in self.stop_ids or len(row.answer) >= self.max_new or row.length >= self.capacity:
                    yield row.task, row.answer
                    last = rows.pop()
                    if number < len(rows):
                        self.cache.move(len(rows), number, last.length)
                        rows[number] = last

    def _prefill(self, task: WritingTask, row: int) -> _Row:
        prompt = torch.tensor([task.prompt])
        step = RowPass(self.cache, row, torch.zeros(1, dtype=torch.long), None)
        hidden = self.model.model(input_ids=prompt, use_cache=False, row_pass=step).last_hidden_state
        first = self._sample(self.model.lm_head(hidden[:, -1]), [task.temperature])[0]
        return _Row(task, len(task.prompt), first, [first])

    def _step(self, rows: list[_Row]) -> None:
        if all(row.answer[-1] in self.stop_ids for row in rows):
            return
        lengths = torch.tensor([row.length for row in rows])
        window = -(-(int(lengths.max()) + 1) // 64) * 64
        window = min(window, self.capacity)
        beyond = torch.arange(window) > lengths[:, None]
        visible = torch.zeros(beyond.shape, dtype=self.model.dtype).masked_fill_(beyond, float("-inf"))[:, None, None]
        hidden = self.model.model(
            input_ids=torch.tensor([[row.pending] for row in rows]),
            position_ids=lengths[:, None],
            use_cache=False,
            row_pass=RowPass(self.cache, torch.arange(len(rows)), lengths, visible),
        ).last_hidden_state
        chosen = self._sample(self.model.lm_head(hidden[:, 0]), [row.task.temperature for row in rows])
        for row, token in zip(rows, chosen, strict=True):
            row.length += 1
            if row.answer[-1] not in self.stop_ids:
                row.pending = token
                row.answer.append(token)

    def _sample(self, logits: Tensor, temperatures: list[float]) -> list[int]:
        chosen = logits.argmax(-1)
        warm = [row for row, temperature in enumerate(temperatures) if temperature > 0]
        if warm:
            scale = torch.tensor([temperatures[row] for row in warm])[:, None]
            total = torch.softmax(logits[warm].float() / scale, -1).cumsum_(-1)
            drawn = torch.rand((len(warm), 1), generator=self.generator) * total[:, -1:]
            chosen[warm] = torch.searchsorted(total, drawn).clamp_(max=logits.shape[-1] - 1)[:, 0]
        return chosen.tolist()


def finished_tasks(shard: Path) -> set[int]:
    """Indices already in `shard`; a torn last line (a killed run) is cut off."""
    if not shard.exists():
        return set()
    done, end = set(), 0
    with shard.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            done.add(json.loads(line)["i"])
            end += len(line)
    with shard.open("rb+") as file:
        file.truncate(end)
    return done


def write_shard(writer: Writer, tasks: list[WritingTask], shard: Path) -> int:
    """Append `{"i": index, "t": temperature, "p": prompt ids, "o": answer ids}` lines; returns the tokens written."""
    done = finished_tasks(shard)
    shard.parent.mkdir(parents=True, exist_ok=True)
    left = [task for task in tasks if task.index not in done]
    tokens = 0
    with shard.open("a") as lines, tqdm(total=len(left), unit="text", mininterval=5) as progress:
        for task, answer in writer.write(left):
            record = {"i": task.index, "t": task.temperature, "p": list(task.prompt), "o": answer}
            lines.write(json.dumps(record) + "\n")
            lines.flush()
            tokens += len(answer)
            progress.update()
            progress.set_postfix(tokens=tokens, tokens_per_s=round(tokens / max(progress.format_dict["elapsed"], 1e-9)))
    return tokens
