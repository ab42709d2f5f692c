"""A whole evaluation: load target, head and index, record every task, replay the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.types import Sampling
from dartspec.services.draft.checkpoint import CONFIG_FILE, head_directory
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.convert_gguf import resolve_model
from dartspec.services.evaluate.grid import Search
from dartspec.services.evaluate.record import Ask, Recording, hit_rates, record
from dartspec.services.evaluate.rounds import Committed, committed_by_budget
from dartspec.services.evaluate.settings import Evaluation
from dartspec.services.ngram.build import build_index
from dartspec.services.ngram.trees import TreeReader
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.replica import Replica, load_replica

HITS_AMONG = (1, 10)
ORDER = 3  # of an index that is counted here, as `dartspec ngram build` has it
_SAMPLING_FIELDS = ("top_k", "top_p", "min_p", "repetition_penalty")


def evaluate(evaluation: Evaluation) -> dict[str, Any]:
    """Run it. The result's keys are explained in docs/draft-evaluation.md. Raises DartspecError naming the setting."""
    grid, settings = evaluation.grid, evaluation.settings
    head = HeadConfig.from_file(head_directory(evaluation.head) / CONFIG_FILE)  # before the target is loaded
    searches = grid.searches(evaluation.index is not None, head.transition_rank > 0)
    replica = load(evaluation, max(search.k for search in searches))
    reader = open_reader(evaluation, replica)
    points: list[dict[str, Any]] = []
    for temperature, recordings in _recorded(evaluation, replica).items():
        for shared in _kinds(evaluation, temperature):
            hits = _hits(recordings, shared)
            for search in tqdm(searches, unit="search", disable=None, leave=False):
                counted = {
                    task: [committed_by_budget(found, shared, search, grid.budgets, reader) for found in by_seed]
                    for task, by_seed in recordings.items()
                }
                for theta in grid.budgets if search.mode != "chain" else grid.budgets[:1]:
                    where = {"temperature": temperature, "share_noise": shared, **_described(search, theta)}
                    points.append({**where, **_committed(counted, theta), **hits})
    return {
        "model": evaluation.model,
        "head": evaluation.head,
        "index": str(evaluation.index) if evaluation.index else None,
        "dtype": settings.dtype,
        "device": replica.description.device,
        "max_new": settings.max_new,
        "seeds": list(settings.seed),
        "prompts": {task: len(found) for task, found in evaluation.tasks.items()},
        **{name: points[0][name] for name in ("hit1", "hit10", "mean_committed", "mean")},
        "points": points,
    }


def load(evaluation: Evaluation, top_k: int) -> Replica:
    """Target and head as they are evaluated, with ``top_k`` candidates or more. Raises DartspecError."""
    settings = evaluation.settings
    return load_replica(
        VerifierSettings(
            model=evaluation.model,
            revision=evaluation.revision,
            head=evaluation.head,
            dtype=settings.dtype,
            device=settings.device,
            threads=settings.threads or 0,
            top_k=max(top_k, HITS_AMONG[-1]),
            budget="fixed:8",  # no tree is verified here
            max_sessions=settings.rows,
            invariant="off",
        )
    )


def pooled(parts: Sequence[Committed]) -> Committed:
    """The sums of several answers."""
    return Committed(sum(part.rounds for part in parts), sum(part.accepted for part in parts))


def open_reader(evaluation: Evaluation, replica: Replica) -> TreeReader:
    """The evaluation's index, counted now if it is not there yet. Raises DartspecError."""
    vocab_size = replica.description.vocab_size
    threads = evaluation.settings.threads or 1
    if evaluation.index is None:
        return TreeReader.without_counts(vocab_size, threads)
    fingerprint = replica.tokenizer.fingerprint
    if evaluation.corpus is not None and not evaluation.index.is_file():
        evaluation.index.parent.mkdir(parents=True, exist_ok=True)
        build_index(
            [evaluation.corpus],
            evaluation.index,
            order=ORDER,
            vocab_size=vocab_size,
            fingerprint=fingerprint,
            quiet=True,
        )
    return TreeReader.open(evaluation.index, fingerprint, vocab_size, threads)


def _prompts(evaluation: Evaluation, replica: Replica) -> dict[str, list[list[int]]]:
    """Token ids of each prompt as a chat's only message. Raises InvalidArgument for one without room for an answer."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(resolve_model(evaluation.model, evaluation.revision or None))
    found: dict[str, list[list[int]]] = {}
    for task, texts in evaluation.tasks.items():
        chats = [[{"role": "user", "content": text}] for text in texts]
        found[task] = [
            tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
            for chat in chats
        ]
        for number, ids in enumerate(found[task], 1):
            if len(ids) >= replica.admission.context_length:
                raise InvalidArgument(
                    "--data",
                    f"prompt {number} of {task} has {len(ids)} tokens, the model's context is "
                    f"{replica.admission.context_length}",
                )
    return found


def sampling_at(replica: Replica, temperature: float, max_new: int) -> Sampling:
    """What a request that only names a temperature gets: the rest is the model's own."""
    defaults = replica.description.default_sampling
    chosen = {name: getattr(defaults, name) for name in _SAMPLING_FIELDS if defaults.HasField(name)}
    return Sampling(temperature=temperature, max_tokens=max_new, **chosen)


def _kinds(evaluation: Evaluation, temperature: float) -> tuple[bool, ...]:
    """Kinds of draft that differ; at temperature 0 there is no noise to share."""
    return evaluation.share_noise if temperature else (False,)


def _recorded(evaluation: Evaluation, replica: Replica) -> dict[float, dict[str, list[list[Recording]]]]:
    """By temperature and task a list of recordings for each seed; all are written together, as wide as rows allow."""
    settings = evaluation.settings
    places: list[list[Recording]] = []
    asks: list[Ask] = []
    found: dict[float, dict[str, list[list[Recording]]]] = {}
    prompts = _prompts(evaluation, replica)
    for temperature in dict.fromkeys(settings.temperature):
        sampling = sampling_at(replica, temperature, settings.max_new)
        seeds = tuple(dict.fromkeys(settings.seed)) if temperature else settings.seed[:1]
        found[temperature] = {task: [[] for _ in seeds] for task in prompts}
        for task, ids in prompts.items():
            for place, seed in zip(found[temperature][task], seeds, strict=True):
                asks += [Ask(prompt, sampling, seed, _kinds(evaluation, temperature)) for prompt in ids]
                places += [place for _ in ids]
    with tqdm(total=len(asks), unit="answer", disable=None) as bar:
        for place, recording in zip(places, record(replica.decoder, replica.admission, asks, bar.update), strict=True):
            place.append(recording)
    return found


def _hits(recordings: Mapping[str, Sequence[Sequence[Recording]]], shared: bool) -> dict[str, list[float]]:
    every = [recording for by_seed in recordings.values() for found in by_seed for recording in found]
    rates = {f"hit{among}": hit_rates(every, shared, among) for among in HITS_AMONG}
    return {name: [round(rate, 4) for rate in found] for name, found in rates.items()}


def _described(search: Search, theta: int) -> dict[str, Any]:
    named = asdict(search)
    return {"search": named.pop("mode"), **named, "theta": theta if search.mode != "chain" else None}


def _committed(counted: Mapping[str, Sequence[Mapping[int, Sequence[Committed]]]], theta: int) -> dict[str, Any]:
    """M of each task, a ratio of sums; their mean; the same of each seed."""
    whole = {task: pooled([one for seed in by_seed for one in seed[theta]]) for task, by_seed in counted.items()}
    seeds = zip(*([pooled(seed[theta]).mean for seed in by_seed] for by_seed in counted.values()), strict=True)
    return {
        "mean_committed": {task: _rounded(sums.mean) for task, sums in whole.items()},
        "mean": _rounded(_mean([sums.mean for sums in whole.values()])),
        "mean_by_seed": [_rounded(_mean(means)) for means in seeds],
        "rounds": {task: sums.rounds for task, sums in whole.items()},
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
