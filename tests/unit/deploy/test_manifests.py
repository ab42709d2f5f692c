"""k8s/: every overlay renders, fits the schemas, keeps the usual rules, and its commands are ours."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.commands import expanded, parse, shell_commands
from tests.unit.deploy.manifests import (
    K8S,
    OVERLAYS,
    Object,
    containers,
    matches,
    name_of,
    of_kind,
    pods,
    rendered,
    seconds,
    with_component,
)

VERSION = "1.31"
# Kinds of operators and of the Gateway API, which no schema of Kubernetes itself describes.
OTHER_KINDS = {"ServiceMonitor", "PrometheusRule", "GRPCRoute", "HTTPRoute"}
# The one container that runs as root, and the one right that it has: the kubelet makes hostPath directories for root.
ROOT_CONTAINERS = {("DaemonSet/ngram", "directories"): ["CHOWN"]}


@pytest.fixture(params=[*(f"overlays/{name}" for name in OVERLAYS), "metrics-adapter", "redis"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> list[Object]:
    if request.param == "redis":
        return with_component(tmp_path, "redis", "index-build")
    return rendered(request.param)


def test_every_component_is_looked_at() -> None:
    used = {"redis", "index-build"}
    for name in OVERLAYS:
        overlay = yaml.safe_load((K8S / "overlays" / name / "kustomization.yaml").read_text())
        used |= {Path(component).name for component in overlay.get("components", [])}
    assert used == {path.name for path in (K8S / "components").iterdir()}


def test_the_schemas_hold(objects: list[Object]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for each in objects:
        if each["kind"] not in OTHER_KINDS:
            kubernetes_validate.validate(each, VERSION, strict=True)


def test_all_are_in_one_namespace(objects: list[Object]) -> None:
    (namespace,) = [each["metadata"]["name"] for each in of_kind(objects, "Namespace")]
    for each in objects:
        if each["kind"] not in ("Namespace", "ClusterRole", "ClusterRoleBinding", "APIService", "RoleBinding"):
            assert each["metadata"]["namespace"] == namespace, name_of(each)


def test_containers_are_confined(objects: list[Object]) -> None:
    for workload, template in pods(objects):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, workload
        assert spec["securityContext"]["runAsUser"] > 0, workload
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, workload
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in containers(template):
            where = (workload, container["name"])
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, where
            assert context["allowPrivilegeEscalation"] is False, where
            assert context["capabilities"] == {"drop": ["ALL"]} or (
                context["capabilities"] == {"drop": ["ALL"], "add": ROOT_CONTAINERS[where]}
            ), where
            if where not in ROOT_CONTAINERS:
                assert not {"runAsNonRoot", "runAsUser", "privileged"} & context.keys(), where
            tag = container["image"].rpartition(":")[2]
            assert "/" not in tag, where
            assert tag not in ("", "latest"), where
            for kind in ("requests", "limits"):
                assert container["resources"][kind].keys() >= {"cpu", "memory"}, where


def test_probes_tell_alive_from_ready(objects: list[Object]) -> None:
    for workload, template in pods(objects):
        if workload.startswith("Job/"):
            continue
        for container in containers(template, init=False):
            ready, alive = container["readinessProbe"], container["livenessProbe"]
            assert ready != alive, workload
            patience = [probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3) for probe in (ready, alive)]
            assert patience[0] < patience[1], workload
            if container["name"] in ("gateway", "verifier", "ngram"):
                assert "startupProbe" in container, workload


def test_nothing_points_nowhere(objects: list[Object]) -> None:
    labels = [template["metadata"]["labels"] for _, template in pods(objects)]
    ports = {
        name_of(service): {port["port"] for port in service["spec"]["ports"]} for service in of_kind(objects, "Service")
    }
    for each in of_kind(objects, "Deployment", "DaemonSet"):
        assert matches(each["spec"]["selector"], each["spec"]["template"]["metadata"]["labels"]), name_of(each)
    for service in of_kind(objects, "Service"):
        chosen = [
            template
            for _, template in pods(objects)
            if matches({"matchLabels": service["spec"]["selector"]}, template["metadata"]["labels"])
        ]
        assert len(chosen) == 1, name_of(service)
        named = {port["name"] for container in containers(chosen[0]) for port in container.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= named, name_of(service)
    selecting = [each["spec"]["selector"] for each in of_kind(objects, "PodDisruptionBudget")]
    for policy in of_kind(objects, "NetworkPolicy"):
        peers = [peer for rule in policy["spec"].get("ingress", []) for peer in rule.get("from", [])]
        peers += [peer for rule in policy["spec"].get("egress", []) for peer in rule.get("to", [])]
        selecting += [policy["spec"]["podSelector"], *(peer["podSelector"] for peer in peers if "podSelector" in peer)]
    for selector in selecting:
        assert any(matches(selector, each) for each in labels), selector
    scaled = [each["spec"]["scaleTargetRef"] for each in of_kind(objects, "HorizontalPodAutoscaler")]
    assert {f"{target['kind']}/{target['name']}" for target in scaled} <= {workload for workload, _ in pods(objects)}
    for route in of_kind(objects, "HTTPRoute", "GRPCRoute"):
        for backend in [backend for rule in route["spec"]["rules"] for backend in rule["backendRefs"]]:
            assert backend["port"] in ports[f"Service/{backend['name']}"]


def test_monitors_find_ports(objects: list[Object]) -> None:
    for monitor in of_kind(objects, "ServiceMonitor"):
        services = [
            each
            for each in of_kind(objects, "Service")
            if matches(monitor["spec"]["selector"], each["metadata"]["labels"])
        ]
        assert services, name_of(monitor)
        for service in services:
            named = {port["name"] for port in service["spec"]["ports"]}
            assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= named


def test_volumes_maps_and_accounts_exist(objects: list[Object]) -> None:
    there = {name_of(each) for each in objects}
    for workload, template in pods(objects):
        spec = template["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}" in there, workload
        mounted = [mount["name"] for container in containers(template) for mount in container.get("volumeMounts", [])]
        assert set(mounted) == set(volumes), workload
        if "serviceAccountName" in spec:
            assert f"ServiceAccount/{spec['serviceAccountName']}" in there, workload
        for container in containers(template):
            for variable in container.get("env", []):
                source = variable.get("valueFrom", {}).get("configMapKeyRef")
                if source:
                    (found,) = [each for each in objects if name_of(each) == f"ConfigMap/{source['name']}"]
                    assert source["key"] in found["data"], workload


def test_everything_that_serves_has_a_disruption_budget(objects: list[Object]) -> None:
    budgets = [each["spec"]["selector"] for each in of_kind(objects, "PodDisruptionBudget")]
    for each in of_kind(objects, "Deployment"):
        if each["spec"].get("replicas") == 1:
            continue  # a budget for one pod would only forbid to empty its node
        assert any(matches(selector, each["spec"]["template"]["metadata"]["labels"]) for selector in budgets)


def test_everything_is_denied_first(objects: list[Object]) -> None:
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(objects, "NetworkPolicy")}
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nobody_is_killed_while_it_drains(overlay: str) -> None:
    arguments, grace = {}, {}
    for workload, template in pods(rendered(f"overlays/{overlay}")):
        (container,) = containers(template, init=False)
        arguments[workload] = container.get("args", [])
        grace[workload] = template["spec"].get("terminationGracePeriodSeconds", 30)
        if workload == "Deployment/gateway":
            pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    longest = seconds(arguments["Deployment/gateway"], "--total-seconds")
    for workload, before in (("Deployment/gateway", pause), ("Deployment/verifier", 0.0)):
        drain = seconds(arguments[workload], "--drain-seconds")
        assert longest < drain
        assert before + drain < grace[workload]


def variables(container: Object, objects: list[Object]) -> dict[str, str]:
    """A container's environment, with something for what only a cluster knows."""
    maps = {each["metadata"]["name"]: each["data"] for each in of_kind(objects, "ConfigMap")}
    found = {"JOB_COMPLETION_INDEX": "0"}
    for each in container.get("env", []):
        source = each.get("valueFrom", {}).get("configMapKeyRef")
        found[each["name"]] = maps[source["name"]][source["key"]] if source else each.get("value", "10.0.0.1")
    return found


def test_commands_are_ours(objects: list[Object]) -> None:
    for workload, template in pods(objects):
        for container in containers(template):
            if not container["image"].startswith("dartspec-"):
                continue
            known = variables(container, objects)
            if "command" not in container:
                words = [expanded(word, known) for word in container["args"]]
                assert parse(words)[0].split()[1:] == words[:2], workload
            for script in container.get("args", []) if container.get("command", [""])[0] == "/bin/sh" else []:
                for words in shell_commands(script):
                    parse([expanded(word, known) for word in words])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_verifier_has_no_more_threads_than_its_limit(overlay: str) -> None:
    templates = dict(pods(rendered(f"overlays/{overlay}")))
    (verifier,) = [one for one in containers(templates["Deployment/verifier"]) if one["name"] == "verifier"]
    (threads,) = [one for one in verifier["env"] if one["name"] == "DARTSPEC_VERIFIER_THREADS"]
    assert threads["valueFrom"] == {"resourceFieldRef": {"resource": "limits.cpu"}}
    assert parse(["verifier", "serve"], {threads["name"]: 3})[1]["threads"] == 3


def test_the_restricted_overlay_uses_nothing_of_the_node() -> None:
    objects = rendered("overlays/restricted")
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for workload, template in pods(objects):
        assert not [volume for volume in template["spec"].get("volumes", []) if "hostPath" in volume], workload
        for container in containers(template):
            assert (workload, container["name"]) not in ROOT_CONTAINERS
            assert not [word for word in container.get("args", []) if "unix:" in word], workload
    base: dict[str, Any] = {name_of(each): each for each in rendered("overlays/cpu")}
    labels = base["Namespace/dartspec"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert labels["pod-security.kubernetes.io/warn"] == "restricted"


def test_a_script_with_a_wrong_flag_is_found() -> None:
    script = "true\nexec dartspec ngram build /corpus --output=/x \\\n  --shards=1/2\n"
    (words,) = shell_commands(script)
    assert words == shlex.split("ngram build /corpus --output=/x --shards=1/2")
    with pytest.raises(Exception, match="--shards"):
        parse(words)
    with pytest.raises(Exception, match="must be between"):
        parse(["gateway", "serve", "--node-budget=5000"])
    with pytest.raises(AssertionError, match="DARTSPEC_GATEWAY_NODES"):
        parse(["gateway", "serve"], {"DARTSPEC_GATEWAY_NODES": "1"})
