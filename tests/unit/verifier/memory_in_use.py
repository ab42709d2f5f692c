"""Run as a process: loads a verifier, fills every slot, makes the largest pass, and prints what that took, as JSON.

Arguments: settings as NAME=VALUE. `used` is the process's memory at its peak over that before it loaded anything.
"""

from __future__ import annotations

import gc
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.decoder import Decoder, Work
from dartspec.services.verifier.kv_cache import rounded_capacity
from dartspec.services.verifier.memory import Demand, Limits
from dartspec.services.verifier.messages import Open
from dartspec.services.verifier.replica import load_replica
from dartspec.services.verifier.scheduler import SHARED_PREFILL_ROWS
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.warmup import PROFILE_ROWS

from .tiny import tiny_decoder


def status(name: str) -> int:
    """Bytes of an entry of this process's status."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def open_session(decoder: Decoder, admission: Admission, length: int, answer: int) -> Session:
    order = Open(1, [5] * length, length, Sampling(0.0, answer, ignore_eos=True), 0, 0, "", True, False)
    return admission.open(order, decoder)


def largest_pass(decoder: Decoder, admission: Admission) -> None:
    """Every session verifies a full tree at the end of its context, while a prompt is read."""
    nodes = admission.max_nodes
    answer = nodes + 2
    length = admission.context_length - answer
    sessions = []
    while len(sessions) < admission.max_sessions:
        if decoder.target.pool.room(rounded_capacity(admission.context_length + nodes + 1)) is None:
            break
        sessions.append(open_session(decoder, admission, length, answer))
    for session in sessions[1:]:
        session.cache.length = length
        session.tokens.append(5)
    star = Tree(
        np.arange(nodes, dtype=np.int32) % decoder.target.config.vocab_size,
        np.zeros(nodes, np.int32),
        np.ones(nodes, np.float32),
        np.zeros(nodes, np.uint16),
    )
    sessions[0].cache.length = length - SHARED_PREFILL_ROWS
    works = [Work(session, star) for session in sessions[1:]] + [Work(sessions[0], Tree.empty(), SHARED_PREFILL_ROWS)]
    decoder.step(works)


def main(arguments: list[str]) -> None:
    logging.disable()
    settings: dict[str, Any] = dict(argument.split("=", 1) for argument in arguments)
    for name in ("max_sessions", "context_length"):
        settings[name] = int(settings[name])
    torch.set_num_threads(1)
    warm = tiny_decoder()  # what libraries take once is nobody's demand
    largest_pass(warm, Admission(2, 4096, 512, 8))
    del warm
    gc.collect()
    before = status("RssAnon")
    replica = load_replica(VerifierSettings(**settings))
    admission, decoder = replica.admission, replica.decoder
    limits = Limits(admission.max_sessions, admission.max_nodes, admission.context_length, PROFILE_ROWS)
    parts = Demand(decoder.target, replica.head, limits).at(admission.kv_positions)
    gc.collect()
    loaded = status("RssAnon") - before
    (region,) = decoder.target.pool.regions
    region.data.fill_(0.25)
    if region.draft is not None:
        for tensor in (region.draft.head, region.draft.ends, region.draft.waiting):
            tensor.fill_(0.25)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from here on
    largest_pass(decoder, admission)
    print(
        json.dumps(
            {
                "loaded": loaded,
                "used": status("VmHWM") - status("RssFile") - before,
                "estimate": parts.total,
                "weights": parts.target_weights + parts.head_weights,
                "caches": parts.target_cache + parts.head_cache,
                "table": parts.table(),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
