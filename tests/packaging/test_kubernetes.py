"""The manifests and the chart are valid, consistent, and configure the service that is here."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

from image_service import __version__
from image_service.settings.settings import Settings, variables
from tests.packaging.conftest import CHECKOUT
from tests.packaging.manifests import Installation, Manifest, parse_manifests, placed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CONF = CHECKOUT / "conf"
CHART = CONF / "helm" / "image-service"
DOCUMENT = (CHECKOUT / "docs" / "kubernetes.md").read_text()
SIZES = ("one-replica", "three-replicas")
INSTALLATIONS = {
    size: Installation(parse_manifests((CONF / "kubernetes" / f"{size}.yaml").read_text())) for size in SIZES
}
OLDEST = re.findall(r"\d+\.\d+", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])[0]
NEWEST = ".".join(all_versions()[-1].split(".")[:2])

SECRET = "0123456789abcdef" * 4
# What an operator puts into the keys of the Secrets.
KEYS = {
    "url": "postgresql+psycopg://images:password@db.example.com/images",
    "listen-url": "postgresql+psycopg://images:password@db.example.com:5433/images",
    "secret": f"{SECRET}\n",
    "token": f"{SECRET}\n",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
}
POD_IP = "127.0.0.1"


@pytest.fixture(params=SIZES)
def installation(request: pytest.FixtureRequest) -> Installation:
    return INSTALLATIONS[request.param]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_oldest_and_newest_kubernetes_know_every_field(installation: Installation, version: str) -> None:
    for manifest in installation.manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("field", [{"progressDeadlineSeconds": "3600"}, {"replcas": 3}])
def test_wrong_type_and_unknown_field_are_found(field: Manifest, version: str) -> None:
    (deployment,) = copy.deepcopy(INSTALLATIONS["three-replicas"].of_kind("Deployment"))
    deployment["spec"] |= field
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, version, strict=True)


def test_document_names_the_versions() -> None:
    assert f"Kubernetes {OLDEST} to {NEWEST}" in DOCUMENT


def test_manifests_are_consistent(installation: Installation) -> None:
    assert list(installation.faults()) == []


MUTATIONS: dict[str, Callable[[Installation], object]] = {
    "no pod has {'app': 'x'}": lambda of: of.of_kind("Service")[0]["spec"].update(selector={"app": "x"}),
    "the container has no port images": lambda of: of.container["ports"].pop(0),
    "no Service has what the Ingress leads to": lambda of: of.of_kind("Service")[1]["spec"]["ports"].clear(),
    "the NetworkPolicy closes port admin": lambda of: of.of_kind("NetworkPolicy")[0]["spec"]["ingress"].pop(),
    "volume os-images is not there": lambda of: of.pod["volumes"].pop(1),
    "there is no ConfigMap": lambda of: of.of_kind("ConfigMap")[0]["metadata"].update(name="x"),
    "no volume has /etc/image-service/os-images/os-images.json": lambda of: of.of_kind("ConfigMap")[0].update(
        data={}
    ),
    "everybody may read": lambda of: of.pod["volumes"][-1]["secret"].update(defaultMode=0o444),
    "readinessProbe requests": lambda of: of.container["readinessProbe"]["httpGet"].update(path="/ready"),
    "a hung process is killed late": lambda of: of.container["livenessProbe"].update(
        terminationGracePeriodSeconds=620
    ),
    "killed before": lambda of: of.pod.update(terminationGracePeriodSeconds=30),
    "/data has 1Gi": lambda of: of.pod["volumes"][0].update(emptyDir={"sizeLimit": "1Gi"}),
    "the pod is not restricted": lambda of: of.pod["securityContext"].update(runAsNonRoot=False),
    "the container is not restricted": lambda of: of.container.update(securityContext={}),
}


@pytest.mark.parametrize("fault", MUTATIONS)
def test_inconsistency_is_found(fault: str) -> None:
    changed = copy.deepcopy(INSTALLATIONS["three-replicas"])
    MUTATIONS[fault](changed)
    assert any(fault in found for found in changed.faults())


KNOWN = {variable.names[0] for variable in variables()}


def test_variables_are_known_and_given_once(installation: Installation) -> None:
    names = [entry["name"] for entry in installation.container["env"]]
    assert len(names) == len(set(names))
    assert set(names) - KNOWN <= {"POD_IP"}


def test_service_accepts_the_environment(installation: Installation, tmp_path: Path) -> None:
    for path, content in installation.files().items():
        placed(path, tmp_path).parent.mkdir(parents=True, exist_ok=True)
        placed(path, tmp_path).write_text(content or KEYS[path.rpartition("/")[2]])
    plain = {
        name: value.replace("$(POD_IP)", POD_IP).replace("/etc/", f"{tmp_path}/etc/")
        for name, value in installation.plain_variables.items()
    }
    secret = {name: KEYS[key] for name, (_, key) in installation.secret_variables.items()}
    settings = Settings.from_environment(plain | secret | {"DATA_DIR": str(tmp_path)})
    assert settings.listen.port == installation.ports["images"]


def test_document_has_each_secret_and_creates_those_that_are_required(installation: Installation) -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \|", DOCUMENT, re.MULTILINE)
    documented = {(name, key) for name, keys in rows for key in re.findall(r"`([\w-]+)`", keys)}
    commands = re.findall(r"create secret generic ([\w-]+)((?: *\\?\s*--from-literal=\S+)+)", DOCUMENT)
    created = {(name, key) for name, keys in commands for key in re.findall(r"literal=([\w-]+)=", keys)}
    assert installation.secret_keys - created == installation.optional_secret_keys
    assert created | installation.secret_keys <= documented


def test_chart_is_of_this_version(installation: Installation) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert installation.container["image"] == f"image-service:{__version__}"


def merged(defaults: Any, values: Any) -> Any:
    """Lay values over those of the chart, as Helm does."""
    if not (isinstance(defaults, dict) and isinstance(values, dict)):
        return values
    return defaults | {name: merged(defaults.get(name), value) for name, value in values.items()}


def values_of(size: str) -> Any:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    return merged(defaults, yaml.safe_load((CONF / "helm" / f"{size}.yaml").read_text()))


SCHEMA = json.loads((CHART / "values.schema.json").read_text())
IMAGE = {"openshift_version": "4.20", "version": "1", "cpu_architecture": "x86_64"}


@pytest.mark.parametrize("size", SIZES)
def test_schema_accepts_the_values(size: str) -> None:
    jsonschema.validate(values_of(size), SCHEMA)


@pytest.mark.parametrize(
    "members",
    [
        {"url": "file:///live.iso"},
        {"url": "http://example.com/live.iso"},
        {"url": "https://example.com/live.iso", "remote": False},
        {"url": "https://example.com/live.iso", "remote": True},
        {"url": "s3://images/x", "remote": True, "digests": "s3://images/y", "digests_sha256": "ab" * 32},
    ],
)
def test_schema_accepts_base_images(members: dict[str, Any]) -> None:
    images = {"osImages": [{**IMAGE, **members}]}
    jsonschema.validate(merged(values_of("three-replicas"), images), SCHEMA)


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"storage": {"unknown": 1}},
        {"settings": {"UNKNOWN": "1"}},
        {"settings": {"WORKERS": 2}},  # numbers of some size would be rendered as 1e+09
        {"osImages": []},
        {"osImages": [{"version": "1"}]},
        {"osImages": [{**IMAGE, "url": "s3://images/live.iso"}]},  # without remote
        {"osImages": [{**IMAGE, "url": "file:///live.iso", "remote": True}]},
        {"osImages": [{**IMAGE, "url": "https://example.com/live.iso", "digests": "https://example.com/x"}]},
        {"osImages": [{**IMAGE, "url": "s3://images/live.iso", "remote": True, "digests": "s3://images/x"}]},
        {"files": {"HTTPS_KEY_FILE": {"configMap": "a", "key": "b"}}},
        {"secrets": {"database": ""}},
        {"secrets": {"instance": ""}},
        {"storage": {"claim": True}},
        {"service": {"plainPort": 8082}},
        {"service": {"servingCertificate": True}},
    ],
    ids=json.dumps,
)
def test_schema_refuses(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(values_of("three-replicas"), change), SCHEMA)


# Those that are as the container needs them, and those by which a platform gives pods a role.
LEFT_OUT = {
    *("LISTEN_ADDRESS", "DATA_TEMP_DIR", "REMOTE_CACHE_DIR", "STANDALONE_LISTEN", "STANDALONE_TOKEN"),
    *("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"),
    *("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
}
OF_LIBPQ = {"PGSSLROOTCERT"}


def test_each_variable_is_a_value_or_set_by_the_chart() -> None:
    template = (CHART / "templates" / "deployment.yaml").read_text()
    by_chart = set(re.findall(r"name: ([A-Z][A-Z0-9_]+)\b", template)) - {"POD_IP"}
    settings, files = (
        set(SCHEMA["properties"][name]["propertyNames"]["enum"]) for name in ("settings", "files")
    )
    listed = [*settings, *files - OF_LIBPQ, *by_chart, *LEFT_OUT]
    assert sorted(listed) == sorted(KNOWN)


@pytest.mark.parametrize("name", ["prometheus-rules.yaml", "jobs-prometheus-rules.yaml"])
def test_rules_of_the_chart_are_those_of_prometheus(name: str) -> None:
    assert (CHART / name).resolve() == CONF / name


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    found = shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed; it renders the manifests, and is not needed to test them")
    return subprocess.run([found, *arguments], check=False, capture_output=True, text=True)


def render(size: str, *options: str) -> str:
    values = ("--values", CONF / "helm" / f"{size}.yaml")
    rendered = helm("template", "image-service", CHART, *values, *options)
    assert rendered.returncode == 0, rendered.stderr
    return rendered.stdout


@pytest.mark.parametrize("size", SIZES)
def test_manifests_are_what_helm_renders(size: str) -> None:
    """As objects, because the white space depends on Helm's version."""
    assert parse_manifests(render(size)) == INSTALLATIONS[size].manifests


@pytest.mark.parametrize("size", SIZES)
def test_helm_lints(size: str) -> None:
    linted = helm("lint", "--strict", CHART, "--values", CONF / "helm" / f"{size}.yaml")
    assert linted.returncode == 0, linted.stdout


def test_helm_refuses_an_unknown_value_and_an_older_kubernetes() -> None:
    values = ("--values", CONF / "helm" / "one-replica.yaml")
    refused = helm("template", CHART, *values, "--set", "storage.unknown=1")
    assert "additional properties 'unknown' not allowed" in refused.stderr
    refused = helm("template", CHART, *values, "--kube-version", "1.29.9")
    assert "incompatible with Kubernetes v1.29.9" in refused.stderr


@pytest.mark.parametrize("size", SIZES)
def test_openshift_gets_a_certificate_a_route_and_monitoring(size: str) -> None:
    text = render(size, "--values", str(CONF / "helm" / "openshift.yaml"))
    installation = Installation(parse_manifests(text), frozenset({"openshift-service-ca.crt"}))
    assert list(installation.faults()) == []
    for manifest in installation.manifests:
        if manifest["kind"] not in {"Route", "ServiceMonitor", "PrometheusRule"}:  # no schema has these
            kubernetes_validate.validate(manifest, OLDEST, strict=True)
    assert "fsGroup" not in installation.pod["securityContext"]
    (service,) = (each for each in installation.of_kind("Service") if "annotations" in each["metadata"])
    assert service["metadata"]["annotations"] == {
        "service.beta.openshift.io/serving-cert-secret-name": "image-service-tls"
    }
    (route,) = installation.of_kind("Route")
    assert route["spec"]["to"]["name"] == service["metadata"]["name"]
    assert route["spec"]["port"]["targetPort"] in {port["name"] for port in service["spec"]["ports"]}
    assert route["spec"]["tls"]["termination"] == "reencrypt"
    (rules,) = installation.of_kind("PrometheusRule")
    assert rules["spec"] == yaml.safe_load((CONF / "prometheus-rules.yaml").read_text())
    (monitor,) = installation.of_kind("ServiceMonitor")
    (monitored,) = services_of(monitor, installation.manifests)
    assert [port["name"] for port in monitored["spec"]["ports"]] == ["admin"]
    assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ["admin"]


def services_of(monitor: Manifest, manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return the Services that a ServiceMonitor selects."""
    labels = monitor["spec"]["selector"]["matchLabels"].items()
    return [
        each
        for each in manifests
        if each["kind"] == "Service" and labels <= each["metadata"]["labels"].items()
    ]
