"""Everything that a verifier loads before it serves, and how it describes itself."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.common.fingerprint import json_digest
from dartspec.services.common.size import parse_size
from dartspec.services.draft.checkpoint import load_head
from dartspec.services.draft.convert_gguf import resolve_model
from dartspec.services.draft.head import DraftHead
from dartspec.services.verifier.adaptive import AdaptiveBudget
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.budget import Budget, FixedBudget
from dartspec.services.verifier.compiled_proposer import proposer_for
from dartspec.services.verifier.config import ADAPTIVE, VerifierSettings, budget_limit
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.draft_depth import DraftDepth
from dartspec.services.verifier.kv_cache import SLOT_BLOCK, rounded_capacity
from dartspec.services.verifier.lazy_memory import give_back
from dartspec.services.verifier.loader import LoadedTarget, load_target
from dartspec.services.verifier.memory import MIB, Demand, Limits, check_fit
from dartspec.services.verifier.packed_head import pack
from dartspec.services.verifier.sampling import SAMPLER
from dartspec.services.verifier.tokenizer import TokenizerFiles, load_tokenizer
from dartspec.services.verifier.warmup import PROFILE_ROWS, positions_needed, profile, settle_invariance, warm_up
from dartspec.v1 import common_pb2, verifier_pb2

log = logging.getLogger(__name__)

# Revision of the Rounds protocol that this verifier speaks.
PROTOCOL = 1

# Share of the memory that is free after loading which caches and scratch may take: main memory is also that of other
# services and of the page cache, a graphics processor's is ours.
CPU_MEMORY_SHARE = 0.5
GPU_MEMORY_SHARE = 0.85


@dataclass(frozen=True)
class Replica:
    """A loaded verifier."""

    decoder: Decoder
    admission: Admission
    budget: Budget
    tokenizer: TokenizerFiles
    head: DraftHead | None
    hello: verifier_pb2.Hello
    description: verifier_pb2.VerifierServiceDescribeResponse


def load_replica(settings: VerifierSettings) -> Replica:
    """Load target, head and tokenizer. Raises DartspecError naming the setting that does not work out."""
    device = _device(settings.device)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]
    if settings.threads:
        torch.set_num_threads(settings.threads)
    directory = resolve_model(settings.model, settings.revision or None)
    log.info("loading target %s as %s on %s", directory, settings.dtype, device)
    loaded = load_target(directory, settings.model, dtype, device, settings.context_length)
    tokenizer = load_tokenizer(directory)
    head = _head(settings, loaded)
    if head is not None:
        pack(head)
    target = loaded.target
    # Without a head nobody reads features, so no pass puts them together.
    target.feature_layers = () if head is None else head.config.feature_layers or loaded.info.feature_layers
    context_length = settings.context_length or target.config.max_positions
    limit = budget_limit(settings.budget)
    give_back()
    limits = Limits(settings.max_sessions, limit, context_length, max(PROFILE_ROWS, limit + 1))
    kv_positions = _kv_positions(settings, Demand(target, head, limits), device)
    if kv_positions < (least := positions_needed(limit)):
        message = f"kv_positions: a session with passes of {limit} nodes needs {least}, there are {kv_positions}"
        raise FailedPrecondition(message, field="kv_positions")
    target.pool.limit = kv_positions
    reuse = settings.prefix_reuse == "on"
    admission = Admission(settings.max_sessions, kv_positions, context_length, limit, reuse)
    decoder = Decoder(target, proposer_for(head) if head is not None else None, settings.top_k, settings.share_noise)
    log.info("warming up")
    warm_up(decoder, admission)
    settle_invariance(settings.invariant, decoder, admission)
    rows = target.rows
    log.info("invariant rows: %s", f"blocks of {rows.block} in tiles of {rows.tile}" if rows is not None else "no")
    target.prepare(settings.max_sessions, limit)
    budget: Budget = FixedBudget(limit)
    if settings.budget == ADAPTIVE and head is not None:
        log.info("measuring what passes cost")
        cost, draft_ms, shallow_ms = profile(decoder, admission)
        log.info(
            "a pass of 1 row takes %.1f ms, of %d rows %.1f ms",
            cost.pass_ms(1),
            limit + 1,
            cost.pass_ms(limit + 1),
        )
        row_ms = max(draft_ms - shallow_ms, 0.0) / max(head.config.depth - 1, 1)
        log.info("a draft takes %.1f ms, %.2f for each offset after the first", draft_ms, row_ms)
        budget = AdaptiveBudget(cost, limit, draft_ms, DraftDepth(head.config.depth, row_ms))
    if admission.prefixes is not None:
        admission.prefixes.clear()  # nobody will ask what these passes did
    hello = verifier_pb2.Hello(
        protocol=PROTOCOL,
        model_fingerprint=loaded.info.fingerprint,
        tokenizer_fingerprint=tokenizer.fingerprint,
        head_fingerprint=head_fingerprint(head) if head is not None else "",
        sampler=SAMPLER,
    )
    description = verifier_pb2.VerifierServiceDescribeResponse(
        hello=hello,
        model=settings.served_name or Path(settings.model).name,
        architecture=target.config.family,
        dtype=settings.dtype,
        device=str(device),
        context_length=context_length,
        vocab_size=target.config.vocab_size,
        eos_token_ids=target.config.eos_token_ids,
        default_sampling=common_pb2.Sampling(**loaded.default_sampling),
        draft_length=head.config.depth if head is not None else 0,
        max_sessions=settings.max_sessions,
        max_nodes=limit,
        invariant=target.invariant,
        expected_accepted_per_round=(head.config.accepted_per_round or 0.0) if head is not None else 0.0,
    )
    return Replica(decoder, admission, budget, tokenizer, head, hello, description)


def head_fingerprint(head: DraftHead) -> str:
    """Digest of a head's configuration and its own weights, in bfloat16 so that the load's dtype does not matter."""
    own = {
        name: value
        for name, value in head.state_dict().items()
        if name != "lm_head.weight" or not head.lm_head_is_target
    }
    parts = []
    for name in sorted(own):
        value = own[name].detach().cpu()
        flat = value.to(torch.bfloat16).view(torch.int16) if value.is_floating_point() else value
        parts += [name.encode(), flat.contiguous().numpy().tobytes()]
    # What was measured of a head makes no other head of it.
    return json_digest(replace(head.config, accepted_per_round=None).to_json(), *parts)


def _head(settings: VerifierSettings, loaded: LoadedTarget) -> DraftHead | None:
    if settings.head == "none":
        return None
    return load_head(
        settings.head,
        loaded.info,
        allow_other_target=settings.allow_other_target,
        revision=settings.head_revision or None,
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise FailedPrecondition(
            f"device: {name!r} is not a device; use cpu, cuda or cuda:N", field="device"
        ) from error
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise FailedPrecondition(f"device: {name!r} is not available here; use cpu", field="device")
    return device


def _kv_positions(settings: VerifierSettings, demand: Demand, device: torch.device) -> int:
    """Positions of KV cache that memory has room for. Raises FailedPrecondition with all parts when it has none."""
    on_cpu = device.type == "cpu"
    free = psutil.virtual_memory().available if on_cpu else torch.cuda.mem_get_info(device)[0]
    nothing = demand.at(0)
    loaded = nothing.target_weights + nothing.head_weights
    budget = parse_size(settings.memory)
    if settings.kv_positions:
        positions = rounded_capacity(settings.kv_positions)
        check_fit(demand.at(positions), budget or loaded + free, "kv_positions")
    else:
        budget = budget or loaded + int(free * (CPU_MEMORY_SHARE if on_cpu else GPU_MEMORY_SHARE))
        positions = demand.positions(budget)
        check_fit(demand.at(max(positions, SLOT_BLOCK)), budget, "memory")
    parts = demand.at(positions)
    log.info("memory for %d KV positions: %s; %.1f MiB in all", positions, parts.table(), parts.total / MIB)
    return positions
