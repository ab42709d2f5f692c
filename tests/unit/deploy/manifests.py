"""Rendered manifests, and a look at their parts."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
K8S = ROOT / "k8s"
OVERLAYS = ("cpu", "gpu", "restricted")
WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet", "Job")

Object = dict[str, Any]


@functools.cache
def rendered(path: str) -> list[Object]:
    """All objects of a kustomization below k8s/."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, whose kustomize renders the manifests; no cluster")
    done = subprocess.run(["kubectl", "kustomize", str(K8S / path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def with_component(tmp_path: Path, *components: str) -> list[Object]:
    """The base with components, whichever overlays have them."""
    lines = ["apiVersion: kustomize.config.k8s.io/v1beta1", "kind: Kustomization", "namespace: dartspec"]
    lines += ["resources: [k8s/base]"]
    lines += [f"components: [{', '.join(f'k8s/components/{name}' for name in components)}]"]
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "kustomization.yaml").write_text("\n".join(lines))
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def name_of(each: Object) -> str:
    return f"{each['kind']}/{each['metadata']['name']}"


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Name of each workload, and its pod template."""
    for each in of_kind(objects, *WORKLOADS):
        yield name_of(each), each["spec"]["template"]


def containers(template: Object, *, init: bool = True) -> Iterator[Object]:
    """Containers of a pod template, those of its start first."""
    if init:
        yield from template["spec"].get("initContainers", [])
    yield from template["spec"]["containers"]


def matches(selector: Object | None, labels: Object) -> bool:
    """Whether a label selector selects; an empty one selects everything."""
    selector = selector or {}
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for term in selector.get("matchExpressions", []):
        assert term["operator"] == "In"
        if labels.get(term["key"]) not in term["values"]:
            return False
    return True


def seconds(argument_of: list[str], flag: str) -> float:
    """Value of --flag=SECONDS among arguments."""
    (value,) = [each.partition("=")[2] for each in argument_of if each.startswith(f"{flag}=")]
    return float(value)
