"""The target's features and next-token distributions for a set of texts, computed once and memory-mapped afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from dartspec.services.draft.train.data import Text

_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class TextTensors:
    """One text as training sees it; T tokens, K kept teacher tokens a position.

    tokens: int64 [T]. features: bfloat16 [T, 3H]. teacher_ids: int64 [T, K] and teacher_probs: float32 [T, K], the
    target's likeliest successors of position j and their probabilities; zero before the last prompt position.
    """

    tokens: Tensor
    prompt_length: int
    temperature: float
    features: Tensor
    teacher_ids: Tensor
    teacher_probs: Tensor


class TeacherCache:
    """A directory of texts with features and teacher, read through memory maps; made by `build`."""

    def __init__(self, directory: Path) -> None:
        self.meta: dict[str, Any] = json.loads((directory / "meta.json").read_text())
        total, width, kept = self.meta["tokens"], self.meta["width"], self.meta["kept"]
        self.offsets: NDArray[np.int64] = np.load(directory / "offsets.npy")
        self.prompt_lengths: NDArray[np.int64] = np.load(directory / "prompt_lengths.npy")
        self.temperatures: NDArray[np.float64] = np.load(directory / "temperatures.npy")
        self._tokens = np.load(directory / "tokens.npy")
        self._features = np.memmap(directory / "features.bin", np.int16, "r", shape=(total, width))
        self._ids = np.memmap(directory / "teacher_ids.bin", np.int32, "r", shape=(total, kept))
        self._probs = np.memmap(directory / "teacher_probs.bin", np.float16, "r", shape=(total, kept))

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def __getitem__(self, index: int) -> TextTensors:
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return TextTensors(
            torch.from_numpy(self._tokens[rows].astype(np.int64)),
            int(self.prompt_lengths[index]),
            float(self.temperatures[index]),
            torch.from_numpy(np.array(self._features[rows])).view(torch.bfloat16),
            torch.from_numpy(self._ids[rows].astype(np.int64)),
            torch.from_numpy(self._probs[rows].astype(np.float32)),
        )


@torch.inference_mode()
def build(model: Any, texts: Sequence[Text], layers: Sequence[int], kept: int, directory: Path) -> TeacherCache:
    """Run the target over `texts` and write a cache to `directory`, which appears only when complete.

    layers: decoder layers whose outputs are the features. kept: teacher tokens per position (their probabilities are
    the target's own, over its whole vocabulary).
    """
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    lengths = np.array([len(text.tokens) for text in texts], dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    total, width = int(offsets[-1]), len(layers) * model.config.hidden_size
    features = np.memmap(temporary / "features.bin", np.int16, "w+", shape=(total, width))
    ids = np.memmap(temporary / "teacher_ids.bin", np.int32, "w+", shape=(total, kept))
    probs = np.memmap(temporary / "teacher_probs.bin", np.float16, "w+", shape=(total, kept))
    with tqdm(total=total, unit="token", unit_scale=True, desc="teacher", mininterval=5) as progress:
        for batch in _batches(lengths):
            padded = torch.zeros(len(batch), int(lengths[batch].max()), dtype=torch.int64)
            for row, index in enumerate(batch):
                padded[row, : lengths[index]] = torch.tensor(texts[index].tokens)
            # Padding stands on the right, where causal attention keeps it from mattering.
            output = model.model(input_ids=padded.to(model.device), use_cache=False, output_hidden_states=True)
            for row, index in enumerate(batch):
                length, first = int(lengths[index]), texts[index].prompt_length - 1
                rows = slice(int(offsets[index]), int(offsets[index]) + length)
                mine = torch.cat([output.hidden_states[layer + 1][row, :length] for layer in layers], -1)
                features[rows] = mine.to("cpu", torch.bfloat16).view(torch.int16).numpy()
                logits = model.lm_head(output.last_hidden_state[row, first:length]).float()
                best = logits.topk(kept, -1)
                answer = slice(rows.start + first, rows.stop)
                ids[answer] = best.indices.cpu().numpy()
                probs[answer] = (best.values - logits.logsumexp(-1, keepdim=True)).exp().cpu().numpy()
                progress.update(length)
    for array in (features, ids, probs):
        array.flush()
    np.save(temporary / "offsets.npy", offsets)
    np.save(temporary / "tokens.npy", np.array([t for text in texts for t in text.tokens], dtype=np.int32))
    np.save(temporary / "prompt_lengths.npy", np.array([text.prompt_length for text in texts], dtype=np.int64))
    np.save(temporary / "temperatures.npy", np.array([text.temperature for text in texts]))
    meta = {"tokens": total, "width": width, "kept": kept, "layers": list(layers)}
    (temporary / "meta.json").write_text(json.dumps(meta))
    temporary.rename(directory)
    return TeacherCache(directory)


def _batches(lengths: NDArray[np.int64]) -> list[list[int]]:
    """Indices grouped by similar length, at most _BATCH_TOKENS padded tokens a group."""
    groups: list[list[int]] = []
    for index in np.argsort(lengths, kind="stable").tolist():
        if groups and (len(groups[-1]) + 1) * int(lengths[index]) <= _BATCH_TOKENS:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
