"""What the frozen target knows of texts: features and next-token distributions, computed now or once for all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.common.fingerprint import json_digest
from dartspec.services.draft.train.data import Text

_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class TextTensors:
    """One text as training sees it; T tokens, K kept teacher tokens a position.

    tokens: int64 [T]. features: [T, feature width], bfloat16 when cached. teacher_ids: int64 [T, K] and teacher_probs:
    float32 [T, K], the target's likeliest successors of position j and their probabilities; zero before the last
    prompt position.
    """

    tokens: Tensor
    prompt_length: int
    temperature: float
    features: Tensor
    teacher_ids: Tensor
    teacher_probs: Tensor


class TextSource(Protocol):
    """Texts with their features and teacher, by number. `fingerprint` names the texts and how they were made."""

    fingerprint: str
    sizes: list[tuple[int, int]]  # (tokens, prompt tokens)

    def __len__(self) -> int: ...

    def batch(self, numbers: Sequence[int]) -> list[TextTensors]: ...


class LiveTeacher:
    """Runs the target when texts are asked for: no disk, the target's time in every step."""

    def __init__(self, model: Any, texts: Sequence[Text], layers: Sequence[int], kept: int, target: str = "") -> None:
        """As for `build`."""
        self.sizes = [(len(text.tokens), text.prompt_length) for text in texts]
        # Not that of a cache, whose features and probabilities are rounded.
        self.fingerprint = cache_fingerprint(texts, layers, kept, f"live {target}")
        self._model, self._texts, self._layers, self._kept = model, texts, layers, kept

    def __len__(self) -> int:
        return len(self._texts)

    def batch(self, numbers: Sequence[int]) -> list[TextTensors]:
        """The texts of these numbers, on the model's device."""
        found: dict[int, TextTensors] = {}
        texts = [self._texts[number] for number in numbers]
        for place, tensors in run_target(self._model, texts, self._layers, self._kept):
            found[place] = tensors
        return [found[place] for place in range(len(numbers))]


class TeacherCache:
    """A directory of texts with features and teacher, read through memory maps; made by `build`."""

    def __init__(self, directory: Path) -> None:
        self.meta: dict[str, Any] = json.loads((directory / "meta.json").read_text())
        total, width, kept = self.meta["tokens"], self.meta["width"], self.meta["kept"]
        self.fingerprint: str = self.meta.get("fingerprint", "")
        self.offsets: NDArray[np.int64] = np.load(directory / "offsets.npy")
        self.prompt_lengths: NDArray[np.int64] = np.load(directory / "prompt_lengths.npy")
        self.temperatures: NDArray[np.float64] = np.load(directory / "temperatures.npy")
        self.sizes = list(zip(np.diff(self.offsets).tolist(), self.prompt_lengths.tolist(), strict=True))
        self._tokens = np.load(directory / "tokens.npy")
        self._features = np.memmap(directory / "features.bin", np.int16, "r", shape=(total, width))
        self._ids = np.memmap(directory / "teacher_ids.bin", np.int32, "r", shape=(total, kept))
        self._probs = np.memmap(directory / "teacher_probs.bin", np.float16, "r", shape=(total, kept))

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def batch(self, numbers: Sequence[int]) -> list[TextTensors]:
        """The texts of these numbers, on the CPU."""
        return [self[number] for number in numbers]

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


def cache_fingerprint(texts: Sequence[Text], layers: Sequence[int], kept: int, target: str = "") -> str:
    """Digest of the texts in their order, the feature layers, the teacher tokens kept and the target's fingerprint."""
    tokens = np.array([token for text in texts for token in text.tokens], dtype="<i4")
    shape = [[len(text.tokens), text.prompt_length] for text in texts]
    return json_digest({"texts": shape, "layers": list(layers), "kept": kept, "target": target}, tokens.tobytes())


def open_or_build(
    model: Any, texts: Sequence[Text], layers: Sequence[int], kept: int, directory: Path, target: str = ""
) -> TeacherCache:
    """The cache in `directory`, built when it is not there.

    Raises FailedPrecondition when the one that is there was made from other texts, layers or another target.
    """
    if not directory.exists():
        return build(model, texts, layers, kept, directory, target)
    cache = TeacherCache(directory)
    if cache.fingerprint != cache_fingerprint(texts, layers, kept, target):
        raise FailedPrecondition(
            f"{directory} holds other texts, feature layers, teacher tokens or another target's features; "
            "name another --cache, or delete this one"
        )
    return cache


def build(
    model: Any, texts: Sequence[Text], layers: Sequence[int], kept: int, directory: Path, target: str = ""
) -> TeacherCache:
    """Run the target over `texts` and write a cache to `directory`, which appears only when complete.

    layers: decoder layers whose outputs are the features. kept: teacher tokens per position (their probabilities are
    the target's own, over its whole vocabulary). target: the target's fingerprint, for `open_or_build`.
    """
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    offsets = np.concatenate(([0], np.cumsum([len(text.tokens) for text in texts], dtype=np.int64)))
    total, width = int(offsets[-1]), len(layers) * model.config.hidden_size
    features = np.memmap(temporary / "features.bin", np.int16, "w+", shape=(total, width))
    ids = np.memmap(temporary / "teacher_ids.bin", np.int32, "w+", shape=(total, kept))
    probs = np.memmap(temporary / "teacher_probs.bin", np.float16, "w+", shape=(total, kept))
    with tqdm(total=total, unit="token", unit_scale=True, desc="teacher", mininterval=5) as progress:
        for number, text in run_target(model, texts, layers, kept):
            rows = slice(int(offsets[number]), int(offsets[number + 1]))
            features[rows] = text.features.to("cpu", torch.bfloat16).view(torch.int16).numpy()
            ids[rows] = text.teacher_ids.cpu().numpy()
            probs[rows] = text.teacher_probs.cpu().numpy()
            progress.update(len(text.tokens))
    for array in (features, ids, probs):
        array.flush()
    np.save(temporary / "offsets.npy", offsets)
    np.save(temporary / "tokens.npy", np.array([t for text in texts for t in text.tokens], dtype=np.int32))
    np.save(temporary / "prompt_lengths.npy", np.array([text.prompt_length for text in texts], dtype=np.int64))
    np.save(temporary / "temperatures.npy", np.array([text.temperature for text in texts]))
    meta = {"tokens": total, "width": width, "kept": kept, "layers": list(layers)}
    meta["fingerprint"] = cache_fingerprint(texts, layers, kept, target)
    (temporary / "meta.json").write_text(json.dumps(meta))
    temporary.rename(directory)
    return TeacherCache(directory)


def run_target(
    model: Any, texts: Sequence[Text], layers: Sequence[int], kept: int
) -> Iterator[tuple[int, TextTensors]]:
    """(number, tensors on the model's device) of every text, those of similar length together."""
    for batch in _batches([len(text.tokens) for text in texts]):
        with torch.no_grad():
            padded = torch.zeros(len(batch), max(len(texts[index].tokens) for index in batch), dtype=torch.int64)
            for row, index in enumerate(batch):
                padded[row, : len(texts[index].tokens)] = torch.tensor(texts[index].tokens)
            # Padding stands on the right, where causal attention keeps it from mattering.
            padded = padded.to(model.device)
            output = model.model(input_ids=padded, use_cache=False, output_hidden_states=True)
            for row, index in enumerate(batch):
                text = texts[index]
                length, first = len(text.tokens), text.prompt_length - 1
                logits = model.lm_head(output.last_hidden_state[row, first:length]).float()
                best = logits.topk(kept, -1)
                ids = torch.zeros(length, kept, dtype=torch.int64, device=logits.device)
                probs = torch.zeros(length, kept, device=logits.device)
                ids[first:] = best.indices
                probs[first:] = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
                features = torch.cat([output.hidden_states[layer + 1][row, :length] for layer in layers], -1)
                yield (
                    index,
                    TextTensors(padded[row, :length], text.prompt_length, text.temperature, features, ids, probs),
                )


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Indices grouped by similar length, at most _BATCH_TOKENS padded tokens a group."""
    groups: list[list[int]] = []
    for index in np.argsort(lengths, kind="stable").tolist():
        if groups and (len(groups[-1]) + 1) * lengths[index] <= _BATCH_TOKENS:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
