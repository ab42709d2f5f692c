"""What the host adds to a pass: logits on their way to it, the choice of tokens, whole steps of the decoder."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from bench.gpu_model import Preset
from bench.gpu_timing import Clock, rounded, timed
from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.attention import Segment
from dartspec.services.verifier.decoder import Decoder, Work
from dartspec.services.verifier.edits import History
from dartspec.services.verifier.loader import LoadedTarget
from dartspec.services.verifier.logprobs import log_normalizer, log_probability
from dartspec.services.verifier.messages import Open
from dartspec.services.verifier.sampling import choose
from dartspec.services.verifier.session import Session

_RESERVE = 15.0
_PROMPT = 128
_STEPS = 4
_CHOICES = 5
_TOP = 64

SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, max_tokens=256, ignore_eos=True),
    "temperature 1": Sampling(temperature=1.0, max_tokens=256, ignore_eos=True),
    "temperature 0.7, top-k 50, top-p 0.9": Sampling(
        temperature=0.7, max_tokens=256, top_k=50, top_p=0.9, ignore_eos=True
    ),
}


@torch.inference_mode()
def logits(loaded: LoadedTarget, preset: Preset, report: dict[str, Any]) -> None:
    """By rows: the copy of all logits as served and to ordinary memory; and what could go instead, computed on the
    device: the best two with the sum of exponentials, and the best 64."""
    target = loaded.target
    for rows in (1, 16, 60, 64, 512):
        hidden = torch.randn(rows, target.config.hidden, device=target.device).to(target.dtype)
        values = target.logits(hidden)

        def best_two(values: torch.Tensor = values) -> torch.Tensor:
            top = values.float().topk(2, dim=-1)
            return torch.cat((top.values, top.indices.float(), values.float().logsumexp(-1, keepdim=True)), -1).cpu()

        report[f"{rows} rows"] = {
            "megabytes": rounded(values.numel() * values.element_size() / 1e6),
            "product": timed(lambda hidden=hidden: target.logits(hidden), target.device, preset.repeat_seconds),
            "product and copy": timed(
                lambda hidden=hidden: target.host_logits(hidden), target.device, preset.repeat_seconds
            ),
            "pageable copy": timed(lambda values=values: values.cpu(), target.device, preset.repeat_seconds),
            "best two": timed(best_two, target.device, preset.repeat_seconds),
            "best 64": timed(
                lambda values=values: values.float().topk(min(_TOP, values.shape[1]), dim=-1).values.cpu(),
                target.device,
                preset.repeat_seconds,
            ),
        }


def sampler(loaded: LoadedTarget, report: dict[str, Any]) -> None:
    """Milliseconds of host time for the choice of one token, and of its log-probability, from random logits."""
    rng = np.random.default_rng(0)
    values = (3.0 * rng.standard_normal(loaded.target.config.vocab_size)).astype(np.float32)
    for name, sampling in SAMPLINGS.items():
        taken = []
        for position in range(_CHOICES):
            begin = time.perf_counter()
            choose(values, position, History.of([1]), sampling, 7, frozenset())
            taken.append(time.perf_counter() - begin)
        report[name] = {"choose_ms": rounded(1e3 * float(np.median(taken)))}
    taken = []
    for token in range(_CHOICES):
        begin = time.perf_counter()
        log_probability(float(values[token]), log_normalizer(values))
        taken.append(time.perf_counter() - begin)
    report["log_probability_ms"] = rounded(1e3 * float(np.median(taken)))


def steps(loaded: LoadedTarget, preset: Preset, clock: Clock, report: dict[str, Any]) -> None:
    """Plain steps of the decoder by batch and sampling: the whole step, and a pass with its logits on the host."""
    decoder = Decoder(loaded.target, None, 1)
    admission = Admission(max(preset.batches), 1 << 24, loaded.target.config.max_positions, 59)
    report["points"] = points = []
    for name, sampling in SAMPLINGS.items():
        sessions = [_open(decoder, admission, sampling, number) for number in range(max(preset.batches))]
        for batch in preset.batches:
            if clock.left() < _RESERVE:
                return
            points.append({"sampling": name, "batch": batch, **_step(decoder, sessions[:batch])})
        for session in sessions:
            admission.release(session)


def _open(decoder: Decoder, admission: Admission, sampling: Sampling, seed: int) -> Session:
    vocabulary = decoder.target.config.vocab_size
    prompt = [(seed + token) % vocabulary for token in range(_PROMPT)]
    session = admission.open(Open(0, prompt, len(prompt), sampling, seed, 0, "check", False, True), decoder)
    while decoder.prefill(session) is None:
        continue
    return session


def _step(decoder: Decoder, sessions: list[Session]) -> dict[str, float]:
    target = decoder.target
    works = [Work(session, Tree.empty()) for session in sessions]
    whole, alone = [], []
    decoder.step(works)
    for _ in range(_STEPS):
        one = np.zeros(1, np.int32), np.ones((1, 1), bool)
        segments = [Segment(session.cache, [session.tokens[session.n]], *one) for session in sessions]
        begin = time.perf_counter()
        target.host_logits(target.forward(segments).hidden)
        alone.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        decoder.step(works)
        whole.append(time.perf_counter() - begin)
    step, model = (1e3 * float(np.median(each)) for each in (whole, alone))
    return {"step_ms": rounded(step), "pass_ms": rounded(model), "outside_share": rounded(1 - model / step)}
