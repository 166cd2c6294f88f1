from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import ConfigurationError
from image_service.settings.jobs.jobs import UnixAddress
from image_service.settings.jobs.role import JobsRoleSettings
from image_service.settings.parsers import ListenAddress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECRET = "a" * 64


def read(tmp_path: Path, **variables: str) -> JobsRoleSettings:
    return JobsRoleSettings.from_environment({"DATA_DIR": str(tmp_path), **variables})


def test_defaults_need_no_variable_but_the_directory(tmp_path: Path) -> None:
    settings = read(tmp_path)
    jobs = settings.jobs
    assert jobs.apis == {"composer", "worker", "ec2"}
    assert jobs.listen == (UnixAddress(tmp_path / "jobs.sock"), ListenAddress("127.0.0.1", 8091))
    assert jobs.store_url == str(tmp_path / "store")
    assert (jobs.heartbeat_seconds, jobs.poll_seconds, jobs.job_seconds) == (120, 20, 10800)
    assert jobs.retention_seconds == 14 * 24 * 3600
    assert (settings.engine.address, settings.tenants.is_enabled, settings.worker_slots) == (None, False, 2)
    assert settings.catalog.images == ()


def test_the_api_of_ec2_is_served_with_access_keys_only(tmp_path: Path) -> None:
    """Alone, it needs no tokens beyond loopback: its requests are signed."""
    assert read(tmp_path).served_apis == {"composer", "worker"}
    keys = tmp_path / "keys.json"
    key = {"access_key": "a", "secret_key": "x" * 16, "tenant": "", "operations": [], "buckets": []}
    keys.write_text(json.dumps([key]))
    keys.chmod(0o600)
    assert read(tmp_path, EC2_CREDENTIALS_FILE=str(keys)).served_apis == {"composer", "worker", "ec2"}
    alone = {"JOBS_APIS": "ec2", "JOBS_LISTEN": "192.0.2.1:80", "JOBS_PLAIN_HTTP": "true"}
    assert read(tmp_path, EC2_CREDENTIALS_FILE=str(keys), **alone).served_apis == {"ec2"}


def test_aliases_are_names_and_versions(tmp_path: Path) -> None:
    settings = read(tmp_path, DISTRIBUTION_ALIASES="debian-12=4.16, fedora-44=stable")
    assert settings.jobs.distribution_aliases == {"debian-12": "4.16", "fedora-44": "stable"}


def test_relative_data_dir_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = JobsRoleSettings.from_environment({"DATA_DIR": "data"})
    assert settings.jobs.socket_path == tmp_path / "data" / "jobs.sock"


@pytest.mark.parametrize(
    ("variables", "slots"),
    [
        ({"JOBS_APIS": "composer"}, 0),
        ({"JOBS_LISTEN": "127.0.0.1:0"}, 0),
        ({"TEMPORAL_ADDRESS": "temporal:7233"}, 0),
        ({"TEMPORAL_ADDRESS": "temporal:7233", "JOBS_WORKER_SLOTS": "5"}, 5),
        ({"JOBS_WORKER_SLOTS": "0"}, 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_slots_of_the_own_worker(tmp_path: Path, variables: Mapping[str, str], slots: int) -> None:
    assert read(tmp_path, **variables).worker_slots == slots


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        ({"JOBS_APIS": "composer,koji"}, "'koji' must be one of composer, worker, ec2, registry"),
        ({"JOBS_LISTEN": "unix:jobs.sock"}, "absolute path after unix:"),
        ({"JOBS_LISTEN": "host:80"}, "'host:80' must be an IP address and a port"),
        ({"JOBS_LISTEN": f"unix:/{'a' * 120}"}, "at most 107 bytes"),
        ({"JOBS_LISTEN": "0.0.0.0:80"}, "JWT_KEYS_URL or JWT_KEYS_FILE must be set then"),
        ({"JOBS_LISTEN": "0.0.0.0:80", "JWT_KEYS_URL": "http://keys/"}, "HTTPS_CERT_FILE"),
        ({"STORE_URL": "store"}, "must be an absolute path, or s3://BUCKET/PREFIX"),
        ({"UPLOAD_S3_URL": "https://bucket/"}, "must be s3://BUCKET/PREFIX"),
        ({"DISTRIBUTION_ALIASES": "debian-12"}, "'debian-12' must be NAME=VERSION"),
        ({"DISTRIBUTION_ALIASES": "a=1,a=2"}, "'a' is repeated"),
        ({"JOBS_WORKER_SLOTS": "1", "JOBS_APIS": "composer"}, "needs worker in JOBS_APIS"),
        ({"TEMPORAL_ADDRESS": "temporal"}, "must be HOST:PORT"),
        ({"TEMPORAL_NAMESPACE": "images"}, "TEMPORAL_NAMESPACE is set without TEMPORAL_ADDRESS"),
        ({"JWT_ISSUER": "sso"}, "JWT_ISSUER is set without JWT_KEYS_URL"),
        ({"DATABASE_URL": "postgresql://database/jobs"}, "INSTANCE_SECRET_FILE must be set then"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_wrong_text_is_a_fault(tmp_path: Path, variables: Mapping[str, str], fault: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, **variables)
    assert fault in raised.value.detail


def test_public_address_with_tokens_and_a_proxy_for_tls_is_accepted(tmp_path: Path) -> None:
    variables = {"JOBS_LISTEN": "192.0.2.1:80", "JWT_KEYS_URL": "http://keys/", "JOBS_PLAIN_HTTP": "true"}
    assert read(tmp_path, **variables).jobs.public_addresses == (ListenAddress("192.0.2.1", 80),)


def test_all_faults_are_reported_at_once_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError) as raised:
        JobsRoleSettings.from_environment(
            {
                "DATA_DIR": str(tmp_path / "file" / "below"),
                "JOBS_LISTEN": "nowhere",
                "STORE_URL": "nowhere",
                "JOBS_MAX_QUEUED": "0",
                "DATABASE_URL": f"mysql://{SECRET}@host/",
            }
        )
    names = [line.split("=")[0].split(":")[0] for line in raised.value.detail.splitlines()]
    assert names[:5] == ["JOBS_LISTEN", "STORE_URL", "JOBS_MAX_QUEUED", "DATABASE_URL", "DATA_DIR"]
    assert SECRET not in raised.value.detail
