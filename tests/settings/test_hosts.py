"""Hosts in all settings: what is not a host name is a fault of the setting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import ConfigurationError
from image_service.settings.jobs.role import JobsRoleSettings
from image_service.settings.settings import Settings, groups
from image_service.settings.variables import read_group
from tests.settings.conftest import IMAGE

if TYPE_CHECKING:
    from pathlib import Path

BAD_HOSTS = ("a..b", f"{'a' * 64}.example", ".".join(["a" * 63] * 4), ".example")
FAULT = "must have a host name of at most 253 characters, with 1 to 63 in each label"
STREAM = {"stream": "stable", "architectures": ["x86_64"]}
REMOTE = {**IMAGE, "remote": True, "digests_sha256": "0" * 64}
# of every setting that has one
TEXTS = {
    "ASSISTED_SERVICE_HOST": "{}:8090",
    "IMAGE_SERVICE_BASE_URL": "http://{}",
    "OS_IMAGES": json.dumps([{**IMAGE, "url": "https://{}/x.iso"}]).replace("{", "{{", 1),
    "COREOS_STREAMS": json.dumps([{**STREAM, "url": "http://{}/stable.json"}]),
    "HTTP_PROXY": "http://{}:3128",
    "HTTPS_PROXY": "{}",
    "DATABASE_URL": "postgresql://u:p@{}/db",
    "DATABASE_LISTEN_URL": "postgresql://u:p@{}:5432/db",
    "AWS_ENDPOINT_URL": "https://{}",
}
JOBS_TEXTS = {
    "TEMPORAL_ADDRESS": "{}:7233",
    "JWT_KEYS_URL": "https://{}/keys",
    "EC2_OBJECT_STORES": "https://{}",
}


def fill(text: str, host: str) -> str:
    return text.replace("{{", "{").replace("{}", host)


@pytest.mark.parametrize("host", BAD_HOSTS)
@pytest.mark.parametrize("name", TEXTS)
def test_bad_host_is_a_fault_of_its_setting(complete: dict[str, str], name: str, host: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environment({**complete, name: fill(TEXTS[name], host)})
    assert any(line.startswith(name) and FAULT in line for line in caught.value.detail.splitlines())


@pytest.mark.parametrize("name", TEXTS)
def test_host_of_63_characters_is_none(complete: dict[str, str], name: str) -> None:
    faults: list[str] = []
    environ = {**complete, name: fill(TEXTS[name], f"{'a' * 63}.example")}
    for _, group in groups():
        read_group(group, environ, faults)
    assert faults == []


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_bad_host_of_a_digest_list_is_a_fault(complete: dict[str, str], host: str) -> None:
    entry = {**REMOTE, "digests": f"https://{host}/list"}
    with pytest.raises(ConfigurationError, match=f"OS_IMAGES: entry 0: digests {FAULT}"):
        Settings.from_environment({**complete, "OS_IMAGES": json.dumps([entry])})


@pytest.mark.parametrize("host", BAD_HOSTS)
@pytest.mark.parametrize("name", JOBS_TEXTS)
def test_bad_host_of_the_jobs_role_is_a_fault(tmp_path: Path, name: str, host: str) -> None:
    environ = {"DATA_DIR": str(tmp_path), name: fill(JOBS_TEXTS[name], host)}
    with pytest.raises(ConfigurationError) as caught:
        JobsRoleSettings.from_environment(environ)
    assert any(line.startswith(name) and FAULT in line for line in caught.value.detail.splitlines())
