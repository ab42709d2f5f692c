"""Settings of `dartspec gateway serve`."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from dartspec.gateway.dns_feed import service_addresses
from dartspec.gateway.limits import Limits
from dartspec.gateway.router import POLICIES
from dartspec.gateway.tracing import otel_endpoint
from dartspec.services.common.config import addresses, between, redis_url, setting, tcp_address
from dartspec.services.common.logs import FORMATS


@dataclass(frozen=True)
class Settings:
    """Each field is a flag and a variable DARTSPEC_GATEWAY_NAME."""

    listen: tuple[str, ...] = setting(
        ("127.0.0.1:7000",), 'Address, "host:port" (0: a free port) or "unix:/path"; repeatable.', check=addresses
    )
    http_listen: str = setting(
        "",
        'Address of the OpenAI-style HTTP API, "host:port" (0: a free port); default: none.',
        check=tcp_address,
    )
    metrics_listen: str = setting(
        "",
        'Address for Prometheus metrics over HTTP, "host:port" (0: a free port); default: none. --http-listen has '
        "them too.",
        check=tcp_address,
    )
    api_keys_file: str = setting(
        "", 'File of API keys, "name:key" a line; when given, every request must bring one of them.'
    )
    tls_cert: str = setting("", "PEM file of this gateway's certificate; when given, TCP listeners speak TLS.")
    tls_key: str = setting("", "PEM file of its key.")
    tls_client_ca: str = setting("", "PEM file of authorities; when given, clients must show a certificate of theirs.")
    peer_ca: str = setting(
        "", "PEM file of authorities; when given, verifiers and ngram services are called over TLS (not Unix sockets)."
    )
    peer_cert: str = setting("", "PEM file of the certificate that this gateway shows to them.")
    peer_key: str = setting("", "PEM file of its key.")
    verifier: tuple[str, ...] = setting(
        (),
        "Address of a verifier, or dns:///NAME:PORT for all that a name has; others may announce themselves.",
        check=service_addresses,
    )
    ngram: tuple[str, ...] = setting(
        (),
        "Address of an ngram service, or dns:///NAME:PORT; others may announce themselves.",
        check=service_addresses,
    )
    registry: str = setting(
        "",
        "Redis that services announce themselves to (--registry), redis://HOST:PORT; default: none.",
        check=redis_url,
    )
    routing: str = setting("dart", "How verifiers are chosen (docs/gateway.md).", choices=POLICIES)
    node: str = setting(platform.node(), "Name of this node; its own ngram service is preferred.")
    mode: str = setting(
        "auto", "Mode of requests that leave the choice to the server.", choices=("auto", "plain", "dart")
    )
    policy: str = setting(
        "verifier",
        "What mode auto means: verifier leaves everything to the verifiers, learned also keeps kinds of requests from "
        "drafting that do better without (docs/gateway.md).",
        choices=("learned", "verifier"),
    )
    search: str = setting("survival", "How trees are selected.", choices=("survival", "reference"))
    score_rule: str = setting(
        "auto",
        "What n-gram counts say about a token; auto is the rule that goes with --search.",
        choices=("auto", "reference", "stupid_backoff", "witten_bell", "divided"),
    )
    node_budget: int = setting(59, "Nodes of a candidate tree.", check=between(1, 1024))
    beam_width: int = setting(20, "Paths kept at each level by --search reference.", check=between(1, 1024))
    search_timeout_ms: int = setting(
        50, "Wait so long for a tree, then use the verifier's own chain.", check=between(1, 60_000)
    )
    relay: str = setting(
        "auto",
        "Whether the extension ngram_index carries the streams to verifiers and answers offers itself; auto: where it "
        "is installed and no TLS is wanted.",
        choices=("auto", "off"),
    )
    default_max_tokens: int = setting(
        1024, "Longest answer when a request does not say; the context may leave less.", check=between(1, 2**31 - 1)
    )
    max_requests: int = setting(1024, "Requests at once; more are refused with a retry hint.", check=between(1, 10**6))
    max_requests_per_key: int = setting(
        0, "Requests at once of each key of --api-keys-file; 0: no limit of their own.", check=between(0, 10**6)
    )
    stall_seconds: float = setting(
        120.0, "A verifier that owes answers and is silent for so long is lost.", check=between(0.1, 3600)
    )
    queue_seconds: float = setting(
        10.0, "Wait so long for a verifier that can take a request; 0: not at all.", check=between(0, 3600)
    )
    first_token_seconds: float = setting(
        60.0, "Wait so long for a verifier's first token, then ask another.", check=between(0.1, 86_400)
    )
    between_tokens_seconds: float = setting(
        30.0, "Wait so long for each further token, then go on with another verifier.", check=between(0.1, 86_400)
    )
    total_seconds: float = setting(
        3600.0, "End an answer after so long, from its request's arrival; 0: never.", check=between(0, 10**6)
    )
    resume_seconds: float = setting(
        10.0, "Look so long for another verifier before an answer that has begun fails.", check=between(0, 3600)
    )
    heartbeat_seconds: float = setting(
        5.0, "Pace of announcements; a record expires after three.", check=between(0.1, 3600)
    )
    otel_endpoint: str = setting(
        "",
        "Collector of OpenTelemetry traces, http://HOST:4317 (OTLP over gRPC; https for TLS); default: none.",
        check=otel_endpoint,
    )
    drain_seconds: float = setting(
        5.0,
        "After SIGTERM or SIGINT, open answers may go on to their end for so long while new ones are refused.",
        check=between(0, 1e6),
    )
    connection_age_seconds: float = setting(
        0.0,
        "Have gRPC clients connect anew after so long, give or take a tenth, so that they spread over new gateways; "
        "calls end on their old connection; 0: never.",
        check=between(0, 1e6),
    )
    log_level: str = setting("info", "What is logged on stderr.", choices=("debug", "info", "warning", "error"))
    log_format: str = setting("text", "Lines for people, or one JSON object a line.", choices=FORMATS)

    @property
    def limits(self) -> Limits:
        """The time limits together."""
        return Limits(
            queue=self.queue_seconds,
            first_token=self.first_token_seconds,
            between_tokens=self.between_tokens_seconds,
            total=self.total_seconds or None,
            stall=self.stall_seconds,
            resume=self.resume_seconds,
        )
