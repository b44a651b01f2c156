"""The chart, the compose file, the container file and the systemd units are valid.

`make deploy-tools` installs the programs that check them. A test whose program is missing is skipped, with its name.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documents import blocks
from tests.paths import ROOT
from verification.cluster.temporal_cluster import PAGE, VERSION
from waystation.worker.main import parse_options

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "waystation"
TOOLS = ROOT / ".deploy-tools" / "bin"
KUBERNETES = "1.34.0"
VALUES: dict[str, Any] = {
    "image": {"repository": "registry.example.com/agents"},
    "builds": ["2026-11-23", "2026.11_20"],
    "temporal": {"address": "temporal-frontend:7233"},
    "stores": {
        "payloads": "s3://bucket/payloads",
        "artifacts": "s3://bucket/artifacts",
        "memory": "postgresql://waystation@db/waystation",
        "credentials": "postgresql://waystation@db/waystation",
    },
}
EVERYTHING: dict[str, Any] = {
    **VALUES,
    "temporal": {"address": "temporal-frontend:7233", "apiKeySecret": "temporal"},
    "envSecrets": ["models", "stores"],
    "files": {
        "secret": "files",
        "workerKeys": "keys.json",
        "workerIdentity": "workers.toml",
        "webIdentity": "gateway.toml",
        "channels": "channels.toml",
        "encryptionKeys": "encryption.json",
    },
    "autoscaling": {"enabled": True},
    "web": {
        "enabled": True,
        "url": "https://agents.example.com",
        "ingress": {"className": "nginx", "tlsSecret": "tls"},
    },
}
ENCRYPTION = {"name": "WAYSTATION_ENCRYPTION_KEYS", "value": "/etc/waystation/encryption.json"}
SCALER_FIELDS = {
    *("endpoint", "namespace", "taskQueue", "queueTypes", "targetQueueSize"),
    *("workerDeploymentName", "workerDeploymentBuildId"),
}
"""Fields of KEDA's Temporal scaler, as its documentation for version 2.20 lists them."""


def tool(name: str) -> str:
    """Return the path of a program that checks files, or skip the test."""
    path = shutil.which(name, path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"{name} is not installed; `make deploy-tools` installs it, except systemd-analyze")
    return path


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def render(values: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return the objects that the chart consists of."""
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    done = run(tool("helm"), "template", "waystation", CHART, "--values", file, "--kube-version", KUBERNETES)
    assert done.returncode == 0, done.stderr
    (folder / "objects.yaml").write_text(done.stdout)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def containers(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield the name of each object with pods, its pod and its container."""
    for each in objects:
        if each["kind"] in ("Deployment", "Job"):
            pod = each["spec"]["template"]["spec"]
            [container] = pod["containers"]
            yield each["metadata"]["name"], pod, container


@pytest.mark.parametrize("values", [VALUES, EVERYTHING], ids=["required", "everything"])
def test_the_chart_is_valid(values: dict[str, Any], tmp_path: Path) -> None:
    """Helm finds no fault, and each object of Kubernetes matches its schema."""
    render(values, tmp_path)
    values_file = tmp_path / "values.json"
    done = run(tool("helm"), "lint", "--strict", CHART, "--values", values_file, "--kube-version", KUBERNETES)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(tool("kubernetes-validate"), "--strict", "-k", KUBERNETES[:-2], tmp_path / "objects.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({**VALUES, "builds": []}, "builds"),
        ({**VALUES, "temporal": {}}, "address"),
        ({**VALUES, "stores": {**VALUES["stores"], "payloads": "/var/lib/payloads"}}, "payloads"),
        ({**VALUES, "versioning": {"deploymentName": "a.b"}}, "deploymentName"),
        ({**VALUES, "web": {"enabled": True}}, "web.url"),
        ({**VALUES, "builds": ["x" * 60]}, "shorter"),
        ({**VALUES, "files": {"encryptionKeys": "encryption.json"}}, "files.secret"),
        ({**VALUES, "files": {"secret": "files", "encryptionKeys": "../encryption.json"}}, "encryptionKeys"),
        ({**VALUES, "files": {"secret": "files", "encryptionKey": "encryption.json"}}, "encryptionKey"),
    ],
)
def test_an_invalid_value_is_refused_by_name(values: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """Invalid values are refused instead of installing pods that could not start."""
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    done = run(tool("helm"), "template", CHART, "--values", file, "--kube-version", KUBERNETES)
    assert (done.returncode != 0, problem in done.stderr) == (True, True), done.stderr


def test_every_pod_is_without_rights(tmp_path: Path) -> None:
    """No pod runs as root, writes to its image, or receives a token of Kubernetes."""
    names = []
    for name, pod, container in containers(render(EVERYTHING, tmp_path)):
        names.append(name)
        assert pod["securityContext"]["runAsNonRoot"], name
        assert not pod["automountServiceAccountToken"], name
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"], name
        assert (security["allowPrivilegeEscalation"], security["capabilities"]) == (False, {"drop": ["ALL"]}), name
    parts = ("workflows-2026-11-23", "workflows-2026-11-20", "activities-2026-11-23", "activities-2026-11-20")
    assert sorted(names) == sorted(f"waystation-{part}" for part in (*parts, "web", "setup", "check", "promote"))


def test_the_workers_of_the_chart_have_valid_options(tmp_path: Path) -> None:
    """Each build has one deployment for workflows and one for activities, of the same deployment version."""
    seen = set()
    for name, _, container in containers(render(EVERYTHING, tmp_path)):
        program, *arguments = container.get("args", [""])
        if program == "worker":
            options = parse_options(arguments, "waystation worker")
            version = options.deployment_version.version
            seen.add((options.only, version.deployment_name, version.build_id))
            assert container["image"].endswith(f":{version.build_id}"), name
            assert bool(options.keys) == bool(options.agents) == (options.only == "activities"), name
    builds = ("2026-11-23", "2026.11_20")
    assert seen == {(only, "waystation", build) for only in ("workflows", "activities") for build in builds}


def test_every_program_of_the_chart_has_the_encryption_keys(tmp_path: Path) -> None:
    """Workers, the web application and the check of open invocations read the keys from the mounted secret."""
    programs = set()
    for name, pod, container in containers(render(EVERYTHING, tmp_path)):
        if "args" in container:
            programs.add(container["args"][1 if container["args"][0].startswith("--") else 0])
            assert ENCRYPTION in container["env"], name
            [secret] = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
            [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "files"]
            assert (secret, mount["mountPath"]) == ("files", "/etc/waystation"), name
    assert programs == {"worker", "web", "setup", "replay"}


def test_pods_have_probes_and_are_scraped(tmp_path: Path) -> None:
    """The probes, the annotations, the service and the option name one port."""
    values = {**EVERYTHING, "metrics": {"port": 9_500}, "podAnnotations": {"team": "agents"}}
    objects = render(values, tmp_path)
    deployments = [each for each in objects if each["kind"] == "Deployment"]
    assert len(deployments) == 5
    for deployment in deployments:
        template = deployment["spec"]["template"]
        [container] = template["spec"]["containers"]
        assert "--metrics=0.0.0.0:9500" in container["args"]
        assert {"name": "metrics", "containerPort": 9_500} in container["ports"]
        probes = (container["livenessProbe"], container["readinessProbe"])
        assert [probe["httpGet"] for probe in probes] == [
            {"path": path, "port": "metrics"} for path in ("/healthz", "/readyz")
        ]
        scraped = {"scrape": "true", "port": "9500", "path": "/metrics"}
        annotations = {f"prometheus.io/{name}": value for name, value in scraped.items()}
        assert template["metadata"]["annotations"] == {**annotations, "team": "agents"}
    [service] = [each for each in objects if each["metadata"]["name"] == "waystation-metrics"]
    selected = service["spec"]["selector"].items()
    matching = [each for each in deployments if selected <= each["spec"]["template"]["metadata"]["labels"].items()]
    assert len(matching) == 2


def test_each_deployment_scales_on_the_backlog_of_its_build(tmp_path: Path) -> None:
    """The trigger names the queue type, the deployment and the build, with fields that KEDA knows."""
    objects = render(EVERYTHING, tmp_path)
    deployments = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Deployment"}
    scaled = [each["spec"] for each in objects if each["kind"] == "ScaledObject"]
    assert len(scaled) == 4
    for spec in scaled:
        target = spec["scaleTargetRef"]["name"]
        assert "replicas" not in deployments[target]["spec"], target
        [trigger] = spec["triggers"]
        assert (trigger["type"], set(trigger["metadata"]) == SCALER_FIELDS) == ("temporal", True), trigger
        build = deployments[target]["metadata"]["labels"]["waystation/build"]
        assert trigger["metadata"]["workerDeploymentBuildId"] == build
        assert trigger["metadata"]["queueTypes"] == ("workflow" if "-workflows-" in target else "activity")


def test_the_container_file_has_no_known_mistakes() -> None:
    """The container file passes hadolint."""
    done = run(tool("hadolint"), DEPLOY / "Containerfile")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_compose_file_is_valid() -> None:
    """The reference implementation of the Compose specification accepts the compose file."""
    done = run(tool("compose-spec"), "-no-interpolation", DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stderr


def test_the_compose_file_runs_the_version_and_the_settings_of_the_cluster() -> None:
    """The cluster of the server tests is the documented one. Only the number of write partitions differs."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    images = [service["image"] for service in compose["services"].values() if "temporalio" in service["image"]]
    assert {image.partition(":")[2] for image in images} == {f"${{TEMPORAL_VERSION:-{VERSION[1:]}}}"}
    assert yaml.safe_load((CHART / "values.yaml").read_text())["adminTools"]["image"].endswith(f":{VERSION[1:]}")
    settings = yaml.safe_load(compose["configs"]["dynamic-config"]["content"])
    assert settings.pop("matching.numTaskqueueWritePartitions") == [{"value": 1}]
    assert settings == yaml.safe_load(blocks(PAGE, "yaml")[0])


def test_the_worker_of_the_compose_file_has_valid_options() -> None:
    """The command line of the worker can be parsed."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    program, *arguments = services["worker"]["command"]
    assert program == "worker"
    options = parse_options(arguments, "waystation worker")
    assert (options.agents, options.metrics) == ([Path("/srv/agents")], ("0.0.0.0", 9_464))
    assert "http://127.0.0.1:9464/readyz" in services["worker"]["healthcheck"]["test"][-1]
    assert all(services[name]["read_only"] and services[name]["cap_drop"] == ["ALL"] for name in ("worker", "web"))


def test_the_systemd_units_are_valid(tmp_path: Path) -> None:
    """`systemd-analyze verify` accepts the units, with a program that exists here."""
    units = []
    for path in (DEPLOY / "systemd").iterdir():
        units.append(tmp_path / path.name.replace("@", "@1"))
        units[-1].write_text(path.read_text().replace("/opt/waystation/bin/waystation", sys.executable))
    done = run(tool("systemd-analyze"), "verify", "--man=no", *units)
    assert (done.returncode, done.stderr) == (0, "")
