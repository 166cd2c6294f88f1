"""The chart's part for the jobs role: valid values and objects, and an environment that it accepts."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from image_service.settings.jobs.jobs import UnixAddress
from image_service.settings.jobs.role import JobsRoleSettings
from image_service.settings.variables import groups_of, variables_of
from tests.packaging.manifests import HUNG_SECONDS, RESTRICTED, Manifest, parse_manifests
from tests.packaging.test_kubernetes import (
    CHART,
    CONF,
    KEYS,
    LEFT_OUT,
    OF_LIBPQ,
    OLDEST,
    SCHEMA,
    laid_over,
    merged,
    render,
    services_of,
    values_of,
)
from tests.toolkit.transfer.bundles import RsaKey

if TYPE_CHECKING:
    from pathlib import Path

JOBS = yaml.safe_load((CONF / "helm" / "jobs.yaml").read_text())
VALUES = merged(values_of("three-replicas"), JOBS)
TEMPLATE = (CHART / "templates" / "jobs.yaml").read_text()
MORE_VALUES = {
    "jobs": {
        "ec2Secret": "image-service-ec2",
        "bundleSecret": "image-service-bundles",
        "settings": {"EC2_OBJECT_STORES": "https://s3.example.com"},
    },
    "secrets": {"registry": "image-service-registry"},
}
EC2_KEYS = [
    {"access_key": "AKIATEST", "secret_key": "s" * 20, "tenant": "42", "operations": ["*"], "buckets": ["*"]}
]
HELPERS = (CHART / "templates" / "_helpers.tpl").read_text()
# Those of the byte server's values, which the jobs role shares, and those that need a Secret of their own.
NOT_OF_JOBS = {
    *("DATABASE_LISTEN_URL", "OS_IMAGES_REQUEST_HEADERS", "OS_IMAGES_REQUEST_QUERY_PARAMS"),
    "SIGNING_RETIRED_KEYS",  # the byte server lists them
    *("TEMPORAL_TLS_CERT_FILE", "TEMPORAL_TLS_KEY_FILE"),
    # Of a built-in worker; workers in pods of their own have options.
    *("JOBS_REQUIRE_ISOLATION", "JOBS_WORKER_NICE", "JOBS_WORKER_SCRATCH_BYTES"),
}


def test_schema_accepts_the_values() -> None:
    jsonschema.validate(VALUES, SCHEMA)


@pytest.mark.parametrize(
    "change",
    [
        {"jobs": {"unknown": 1}},
        {"jobs": {"settings": {"UNKNOWN": "1"}}},
        {"jobs": {"settings": {"JOBS_LISTEN": "0.0.0.0:80"}}},
        {"jobs": {"settings": {"JOBS_MAX_QUEUED": 5}}},
        {"jobs": {"settings": {"STORE_URL": "/data/store"}}},
        {"jobs": {"worker": {"tokenSecret": ""}}},
        {"secrets": {"database": ""}},
    ],
    ids=json.dumps,
)
def test_schema_refuses(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(VALUES, change), SCHEMA)


@pytest.mark.parametrize("name", ["TEMPORAL_ADDRESS", "STORE_URL", "JWT_KEYS_URL"])
def test_schema_requires_the_settings_of_replicas(name: str) -> None:
    values = merged(VALUES, {})
    values["jobs"] = {**values["jobs"], "settings": {**values["jobs"]["settings"]}}
    del values["jobs"]["settings"][name]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, SCHEMA)


def test_each_variable_of_the_role_is_a_value_or_set_by_the_chart() -> None:
    known = {
        variable.names[0] for _, group in groups_of(JobsRoleSettings) for variable in variables_of(group)
    }
    properties = SCHEMA["properties"]["jobs"]["properties"]
    settings, files = (set(properties[name]["properties"]) for name in ("settings", "files"))
    by_chart = set(re.findall(r"name: ([A-Z][A-Z0-9_]+)\b", TEMPLATE)) - {"POD_IP"}
    by_chart |= set(re.findall(r"name: ([A-Z][A-Z0-9_]+)\b", HELPERS)) - {"POD_IP"}
    by_chart |= {"IMAGE_SERVICE_BASE_URL"}  # of the settings of both roles
    assert not settings & files
    assert not by_chart & (settings | files)
    assert settings | (files - OF_LIBPQ) | by_chart == known - NOT_OF_JOBS - LEFT_OUT


@pytest.fixture
def manifests(tmp_path: Path) -> list[Manifest]:
    """The objects of the chart with the jobs role, EC2's API and registries; needs helm."""
    more = tmp_path / "more.json"
    more.write_text(json.dumps(MORE_VALUES))
    values = ("--values", str(CONF / "helm" / "jobs.yaml"), "--values", str(more))
    return parse_manifests(render("three-replicas", *values))


def find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = (each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def test_objects_are_valid(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        kubernetes_validate.validate(manifest, OLDEST, strict=True)
    (images,) = [
        each
        for each in manifests
        if each["kind"] == "Service" and each["metadata"]["name"] == "image-service"
    ]
    for name in ("jobs", "worker"):
        pods = find(manifests, "Deployment", f"image-service-{name}")["spec"]["template"]
        assert not images["spec"]["selector"].items() <= pods["metadata"]["labels"].items()


def test_hung_process_is_killed_without_the_grace_period_of_the_pod(manifests: list[Manifest]) -> None:
    pod = find(manifests, "Deployment", "image-service-jobs")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] <= HUNG_SECONDS
    assert pod["terminationGracePeriodSeconds"] > HUNG_SECONDS


@pytest.mark.parametrize("name", ["image-service", "image-service-jobs", "image-service-worker"])
def test_files_that_variables_name_are_mounted(manifests: list[Manifest], name: str) -> None:
    pod = find(manifests, "Deployment", name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted.keys() == volumes.keys()
    files = {
        f"{mounted[volume]}/{item['path']}"
        for volume, source in volumes.items()
        for item in source.get("secret", source.get("configMap", {})).get("items", ())
    }
    words = [*container.get("args", ()), *(entry.get("value", "") for entry in container["env"])]
    named = set(re.findall(r"/etc/image-service/\S+", "\n".join(words)))
    assert named - files <= {"/etc/image-service/os-images/os-images.json"}
    assert ("/etc/image-service/ec2/credentials" in named) is (name == "image-service-jobs")
    assert ("/etc/image-service/bundles/key" in named) is (name != "image-service")
    assert "/etc/image-service/registry/auth.json" in named


def test_nobody_reaches_workers_and_they_reach_what_is_allowed(tmp_path: Path) -> None:
    egress = [{"ports": [{"port": 443}]}]
    jobs = ("--values", CONF / "helm" / "jobs.yaml")
    for rules, types in (([], ["Ingress"]), (egress, ["Ingress", "Egress"])):
        options = laid_over(tmp_path, {"jobs": {"worker": {"egress": rules}}})
        manifests = parse_manifests(render("three-replicas", *jobs, *options))
        policy = find(manifests, "NetworkPolicy", "image-service-worker")["spec"]
        assert (policy["policyTypes"], policy["ingress"], policy.get("egress", [])) == (types, [], rules)
        pods = find(manifests, "Deployment", "image-service-worker")["spec"]["template"]
        assert policy["podSelector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()


def test_worker_gets_what_isolation_needs(tmp_path: Path) -> None:
    profile = {"type": "Localhost", "localhostProfile": "profiles/worker.json"}
    worker = {"hostUsers": False, "procMount": "Unmasked", "seccompProfile": profile}
    jobs = ("--values", CONF / "helm" / "jobs.yaml")
    options = laid_over(tmp_path, {"jobs": {"worker": worker}})
    manifests = parse_manifests(render("three-replicas", *jobs, *options))
    deployment = find(manifests, "Deployment", "image-service-worker")
    kubernetes_validate.validate(deployment, OLDEST, strict=True)
    pod = deployment["spec"]["template"]["spec"]
    context = pod["containers"][0]["securityContext"]
    assert pod["hostUsers"] is False
    assert context == {**RESTRICTED, "procMount": "Unmasked", "seccompProfile": profile}


def test_role_accepts_its_environment(manifests: list[Manifest], tmp_path: Path) -> None:
    pod = find(manifests, "Deployment", "image-service-jobs")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    secret = tmp_path / "file"
    secret.write_text(KEYS["secret"])
    rules = tmp_path / "acl.json"
    rules.write_text('[{"claim": "rh-org-id", "pattern": ".+"}]')
    environ = {"DATABASE_URL": KEYS["url"]}
    for entry in container["env"]:
        if "value" in entry:
            environ[entry["name"]] = entry["value"].replace("$(POD_IP)", "192.0.2.1")
    ec2_keys = tmp_path / "credentials"
    ec2_keys.touch(mode=0o600)
    ec2_keys.write_text(json.dumps(EC2_KEYS))
    registries = tmp_path / "auth.json"
    registries.write_text('{"auths": {}}')
    bundle_key = RsaKey.make(tmp_path, "bundles").key
    files = {
        "ADMIN_TOKEN_FILE": secret,
        "INSTANCE_SECRET_FILE": secret,
        "JWT_ACL_FILE": rules,
        "EC2_CREDENTIALS_FILE": ec2_keys,
        "BUNDLE_KEY_FILE": bundle_key,
        "REGISTRY_AUTH_FILE": registries,
    }
    images = next(each["data"] for each in manifests if each["kind"] == "ConfigMap")["os-images.json"]
    environ |= {name: str(path) for name, path in files.items()}
    environ |= {"OS_IMAGES": images, "DATA_DIR": str(tmp_path), "JOBS_PLAIN_HTTP": "true"}
    for name in ("HTTPS_KEY_FILE", "HTTPS_CERT_FILE"):
        environ.pop(name, None)
    settings = JobsRoleSettings.from_environment(environ)
    assert settings.tenants.is_enabled
    assert settings.worker_slots == 0
    assert settings.ec2.object_stores == {"https://s3.example.com"}
    assert not any(isinstance(address, UnixAddress) for address in settings.jobs.listen)


def test_prometheus_reads_the_metrics_of_the_role_and_has_its_rules() -> None:
    values = [f"--values={CONF / 'helm' / name}.yaml" for name in ("jobs", "openshift")]
    manifests = parse_manifests(render("three-replicas", *values))
    monitor, images = (
        find(manifests, "ServiceMonitor", name) for name in ("image-service-jobs", "image-service")
    )
    (service,) = services_of(monitor, manifests)
    assert service["metadata"]["name"] == "image-service-jobs"
    assert monitor["spec"]["endpoints"] == images["spec"]["endpoints"]
    rules = find(manifests, "PrometheusRule", "image-service-jobs")
    assert rules["spec"] == yaml.safe_load((CONF / "jobs-prometheus-rules.yaml").read_text())
