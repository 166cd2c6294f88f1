"""The manifests and the chart are valid, consistent, and configure the service that is here."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

from image_service import __version__
from image_service.settings.admin import read_token
from image_service.settings.settings import Settings, variables
from tests.packaging.api_server import serving
from tests.packaging.conftest import CHECKOUT
from tests.packaging.manifests import Installation, Manifest, parse_manifests, placed
from tests.packaging.test_slo import DOCUMENT as SLO_DOCUMENT
from tests.ports import free_port

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
POD_IP = "192.0.2.1"


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


OBJECTIVES = set(re.findall(r"^`--slo '(\S+)'`", SLO_DOCUMENT, re.MULTILINE))
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


PROXY = {"valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}}


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"AWS_REGION": None, "HTTPS_PROXY": PROXY}},
        {"files": {"SIGNING_KEYS": None}},
        {"jobs": {"settings": {"AWS_REGION": None}, "worker": {"settings": {"HTTPS_PROXY": PROXY}}}},
        {"jobs": {"worker": {"procMount": "Unmasked", "hostUsers": False}}},
        {"jobs": {"worker": {"seccompProfile": {"type": "Localhost", "localhostProfile": "worker.json"}}}},
    ],
    ids=json.dumps,
)
def test_schema_accepts(change: dict[str, Any]) -> None:
    jsonschema.validate(merged(values_of("three-replicas"), change), SCHEMA)


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"storage": {"unknown": 1}},
        {"settings": {"UNKNOWN": "1"}},
        {"settings": {"WORKERS": 2}},  # numbers of some size would be rendered as 1e+09
        {"settings": {"HTTPS_PROXY": {"valueFrom": {"fieldRef": {"fieldPath": "spec"}}}}},
        {"settings": {"HTTPS_PROXY": {"secretKeyRef": {"name": "a", "key": "b"}}}},
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
        {"loadTest": {"enabled": True}},
        {"loadTest": {"objectives": []}},
        {"httpRoute": {"parentRefs": [{}]}},
        {"prometheusRule": {"runbookUrl": "docs"}},
        {"jobs": {"worker": {"seccompProfile": {"type": "Localhost"}}}},
        {"jobs": {"worker": {"procMount": "Unmasked"}}},
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
    templates = [(CHART / "templates" / name).read_text() for name in ("deployment.yaml", "_helpers.tpl")]
    by_chart = set(re.findall(r"name: ([A-Z][A-Z0-9_]+)\b", "".join(templates))) - {"POD_IP"}
    settings, files = (SCHEMA["properties"][name]["properties"].keys() for name in ("settings", "files"))
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


# A helm that is built by Go knows no version of Kubernetes.
VERSION = ("--kube-version", f"{NEWEST}.0")
MANIFEST = re.findall(r"^manifest = (.*)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)[0].split()
"""The options of `make manifests`."""


def template(size: str, *options: str | Path) -> subprocess.CompletedProcess[str]:
    values = ("--values", CONF / "helm" / f"{size}.yaml")
    return helm("template", "image-service", CHART, *VERSION, *values, *options)


def render(size: str, *options: str | Path) -> str:
    rendered = template(size, *MANIFEST, *options)
    assert rendered.returncode == 0, rendered.stderr
    return rendered.stdout


def laid_over(tmp_path: Path, values: dict[str, Any]) -> tuple[str, Path]:
    """Return the options that lay values over others."""
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    return "--values", file


@pytest.mark.parametrize("size", SIZES)
def test_manifests_are_what_helm_renders(size: str) -> None:
    """But for blank lines, which depend on Helm's version."""
    lines = [line for line in render(size).splitlines() if line.strip()]
    assert lines == (CONF / "kubernetes" / f"{size}.yaml").read_text().splitlines()


@pytest.mark.parametrize("size", SIZES)
def test_helm_lints(size: str) -> None:
    values = ("--values", CONF / "helm" / f"{size}.yaml")
    linted = helm("lint", "--strict", CHART, *VERSION, *values)
    assert linted.returncode == 0, linted.stdout


REQUIRED = "required: settings.ASSISTED_SERVICE_HOST, settings.IMAGE_SERVICE_BASE_URL, and osImages or"


def test_default_values_lint_and_say_what_is_missing() -> None:
    linted = helm("lint", "--strict", CHART, *VERSION)
    assert linted.returncode == 0, linted.stdout
    assert REQUIRED in linted.stdout + linted.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"ASSISTED_SERVICE_HOST": None}},
        {"settings": {"IMAGE_SERVICE_BASE_URL": ""}},
        {"osImages": []},
    ],
    ids=json.dumps,
)
def test_required_values(tmp_path: Path, change: dict[str, Any]) -> None:
    refused = template("one-replica", *laid_over(tmp_path, change))
    assert refused.returncode != 0
    assert REQUIRED in refused.stderr


NOT_ALLOWED = "Additional property {0} is not allowed|additional properties '{0}' not allowed"


def test_helm_refuses_an_unknown_value_and_an_older_kubernetes() -> None:
    refused = template("one-replica", "--set", "storage.unknown=1")
    assert re.search(NOT_ALLOWED.format("unknown"), refused.stderr)
    refused = template("one-replica", "--kube-version", "1.29.9")
    assert "incompatible with Kubernetes v1.29.9" in refused.stderr


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("settings.LOGLVEL=debug", "LOGLVEL"),
        ("jobs.settings.STORE_ULR=s3://a/b", "STORE_ULR"),
        ("jobs.worker.settings.HTTPS_PORXY=http://a", "HTTPS_PORXY"),
        ("files.SIGNING_KEY.key=a", "SIGNING_KEY"),
    ],
)
def test_typo_is_named(option: str, wrong: str) -> None:
    refused = template("one-replica", "--set", option)
    assert refused.returncode != 0
    assert re.search(NOT_ALLOWED.format(wrong), refused.stderr)


def test_later_values_remove_a_setting_and_a_file(tmp_path: Path) -> None:
    change = {
        "settings": {"AWS_REGION": None, "HTTPS_PROXY": PROXY},
        "files": {"ASSISTED_SERVICE_API_TRUSTED_CA_FILE": None},
        "ingress": {"host": "images.example.com"},
    }
    openshift = ("--values", CONF / "helm" / "openshift.yaml")
    installation = Installation(
        parse_manifests(render("three-replicas", *openshift, *laid_over(tmp_path, change)))
    )
    assert list(installation.faults()) == []
    names = {entry["name"] for entry in installation.container["env"]}
    assert not names & {"AWS_REGION", "ASSISTED_SERVICE_API_TRUSTED_CA_FILE"}
    assert installation.secret_variables["HTTPS_PROXY"] == ("proxy", "url")


def test_autoscaler_keeps_its_replicas_in_an_upgrade() -> None:
    """Helm would set one that the first manifest has and the second lacks to 1, so it asks the cluster."""
    installed = Installation(parse_manifests(template("three-replicas").stdout))
    assert installed.deployment["replicas"] == 3
    assert "replicas" not in Installation(parse_manifests(render("three-replicas"))).deployment
    without = Installation(parse_manifests(render("three-replicas", "--set", "autoscaling.maxReplicas=0")))
    assert without.deployment["replicas"] == 3


def ask(url: str, *options: str) -> Installation:
    """Render for an installation that a cluster may have."""
    server = (
        "--dry-run=server",
        "--disable-openapi-validation",
        "--kube-apiserver",
        url,
        "--namespace",
        "boot",
    )
    rendered = template("three-replicas", "--set", "secrets.admin=", *server, *options)
    assert rendered.returncode == 0, rendered.stderr
    return Installation(parse_manifests(rendered.stdout))


def test_upgrade_keeps_token_and_replicas_of_the_cluster() -> None:
    token = b64encode(SECRET.encode()).decode()
    name = {"metadata": {"name": "image-service-admin"}}
    secret = {"apiVersion": "v1", "kind": "Secret", **name, "data": {"token": token}}
    scaled = {"metadata": {"name": "image-service"}, "spec": {"replicas": 5}}
    with serving(secret, {"apiVersion": "apps/v1", "kind": "Deployment", **scaled}) as url:
        upgraded = ask(url, "--is-upgrade")
    assert upgraded.of_kind("Secret")[0]["data"] == {"token": token}
    assert upgraded.deployment["replicas"] == 5
    with serving() as url:
        installed = ask(url)
    assert installed.of_kind("Secret")[0]["data"]["token"] not in {"", token}
    assert installed.deployment["replicas"] == 3


@pytest.mark.parametrize("size", SIZES)
def test_token_is_made_if_no_secret_is_named(size: str, tmp_path: Path) -> None:
    rendered = [parse_manifests(template(size, "--set", "secrets.admin=").stdout) for _ in range(2)]
    secrets = [Installation(each).of_kind("Secret")[0] for each in rendered]
    assert ("image-service-admin", "token") in Installation(rendered[0]).secret_keys
    assert {each["metadata"]["name"] for each in secrets} == {"image-service-admin"}
    tokens = set()
    for number, secret in enumerate(secrets):
        file = tmp_path / str(number)
        file.write_bytes(b64decode(secret["data"]["token"]))
        tokens.add(read_token(file))
    assert len(tokens) == 2


def test_other_names_are_consistent() -> None:
    options = ("--set", "fullnameOverride=boot,nameOverride=images,secrets.admin=", "--values")
    manifests = parse_manifests(template("one-replica", *options, CONF / "helm" / "openshift.yaml").stdout)
    installation = Installation(manifests, frozenset({"openshift-service-ca.crt"}))
    assert {each["metadata"]["name"] for each in manifests} <= {"boot", "boot-admin", "boot-os-images"}
    assert {each["metadata"]["labels"]["app.kubernetes.io/name"] for each in manifests} == {"images"}
    assert [fault for fault in installation.faults() if "admin" not in fault] == []
    assert [len(services_of(each, manifests)) for each in installation.of_kind("ServiceMonitor")] == [1]


MORE: dict[str, Any] = {
    "labels": {"team": "metal"},
    "annotations": {"reloader": "true"},
    "podAnnotations": {"mesh": "off"},
    "priorityClassName": "high",
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
                ]
            }
        }
    },
    "extraVolumes": [{"name": "scripts", "configMap": {"name": "scripts"}}],
    "extraVolumeMounts": [{"name": "scripts", "mountPath": "/scripts", "readOnly": True}],
    "loadTest": {"enabled": True, "secret": "image-service-loadtest"},
    "httpRoute": {"parentRefs": [{"name": "gateway"}], "hostnames": ["images.example.com"]},
}


def test_all_pods_have_what_is_given_for_them(tmp_path: Path) -> None:
    jobs = ("--values", CONF / "helm" / "jobs.yaml")
    manifests = parse_manifests(render("three-replicas", *jobs, *laid_over(tmp_path, MORE)))
    assert {each["metadata"]["labels"]["team"] for each in manifests} == {"metal"}
    workloads = [each for each in manifests if each["kind"] in {"Deployment", "CronJob"}]
    assert len(workloads) == 4
    for workload in workloads:
        assert workload["metadata"]["annotations"] == MORE["annotations"]
        spec = workload["spec"].get("jobTemplate", workload)["spec"]
        template, pod = spec["template"], spec["template"]["spec"]
        assert (pod["affinity"], pod["priorityClassName"]) == (MORE["affinity"], "high")
        assert template["metadata"]["labels"]["team"] == "metal"
        assert template["metadata"]["annotations"]["mesh"] == "off"
        assert MORE["extraVolumes"][0] in pod["volumes"]
        assert MORE["extraVolumeMounts"][0] in pod["containers"][0]["volumeMounts"]
    for manifest in manifests:
        if manifest["kind"] != "HTTPRoute":
            kubernetes_validate.validate(manifest, OLDEST, strict=True)


def test_route_of_a_gateway_leads_to_the_service(tmp_path: Path) -> None:
    installation = Installation(parse_manifests(render("one-replica", *laid_over(tmp_path, MORE))))
    (route,) = installation.of_kind("HTTPRoute")
    assert route["spec"]["parentRefs"] == [{"name": "gateway"}]
    assert route["spec"]["hostnames"] == ["images.example.com"]
    (rule,) = route["spec"]["rules"]
    services = {each["metadata"]["name"]: each["spec"]["ports"] for each in installation.of_kind("Service")}
    (backend,) = rule["backendRefs"]
    assert backend["port"] in [port["port"] for port in services[backend["name"]]]
    assert rule["timeouts"] == {"request": "0s"}


def test_load_test_has_the_objectives_of_the_document(tmp_path: Path) -> None:
    manifests = parse_manifests(render("one-replica", *laid_over(tmp_path, MORE)))
    (job,) = (each for each in manifests if each["kind"] == "CronJob")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    assert {each.removeprefix("--slo=") for each in arguments if each.startswith("--slo=")} == OBJECTIVES
    urls = tmp_path / "urls.txt"
    urls.write_text(f"http://127.0.0.1:{free_port()}/x.iso\n")
    command = [each.replace("/etc/image-service/loadtest", str(tmp_path)) for each in arguments]
    python = [sys.executable, "-m", "image_service.cli", *command, "--duration=1s"]
    done = subprocess.run(python, check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr  # nobody responds
    (services,) = {tuple(each["spec"]["selector"].items()) for each in manifests if each["kind"] == "Service"}
    labels = job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert not set(services) <= labels.items()


def test_alerts_lead_to_where_the_documents_are_published() -> None:
    url = "https://docs.example.org/images/"
    options = ("--values", CONF / "helm" / "openshift.yaml", "--set", f"prometheusRule.runbookUrl={url}")
    text = render("three-replicas", *options)
    (rules,) = (each for each in parse_manifests(text) if each["kind"] == "PrometheusRule")
    alerts = [rule for group in rules["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    assert {each["annotations"]["runbook_url"].partition("#")[0] for each in alerts} == {f"{url}alerts.md"}


def notes(directory: Path, *options: str | Path) -> str:
    """Return what an installation prints. Helm needs a cluster for that, so it becomes a manifest here."""
    chart = shutil.copytree(CHART, directory / "chart")
    text = (chart / "templates" / "NOTES.txt").read_text()
    manifest = f'{{{{ define "notes" }}}}{text}{{{{ end }}}}notes: {{{{ include "notes" . | toJson }}}}'
    (chart / "templates" / "notes.yaml").write_text(manifest)
    shown = ("--show-only", "templates/notes.yaml", "--namespace", "boot")
    rendered = helm("template", "image-service", chart, *VERSION, *shown, *options)
    assert rendered.returncode == 0, rendered.stderr
    return str(parse_manifests(rendered.stdout)[0]["notes"])


@pytest.mark.parametrize("size", SIZES)
def test_notes_say_how_the_service_is_reached(size: str, tmp_path: Path) -> None:
    text = notes(tmp_path, "--values", CONF / "helm" / f"{size}.yaml")
    assert "kubectl -n boot port-forward deployment/image-service 8081" in text
    assert "get secret image-service-admin -o 'go-template={{.data.token | base64decode}}'" in text
    assert "nothing from outside" not in text
    assert "Prometheus Operator" not in text


def test_notes_say_what_is_missing(tmp_path: Path) -> None:
    values = ("--values", CONF / "helm" / "one-replica.yaml", "--set", "service.type=ClusterIP")
    text = notes(tmp_path, *values, "--api-versions", "monitoring.coreos.com/v1")
    assert "The chart leads nothing from outside to the Service image-service" in text
    assert "serviceMonitor.enabled" in text


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
