"""Two replicas of the jobs role, with PostgreSQL, S3, an engine of their own, and tenants."""

from __future__ import annotations

import hashlib
import json
import secrets
from base64 import b64encode
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import attrs
import pytest

from tests.acceptance.clients import run_client
from tests.acceptance.service import Answer, fetch
from tests.jobs.engine.servers import running_engine
from tests.jobs.running_role import API, DISTRIBUTION, RunningRole, running_role, wait_until
from tests.jobs.tenants.tokens import EC, key_set
from tests.postgres import running_postgres
from tests.s3_server import BUCKET, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

CONFIG = b'{"ignition": {"version": "3.3.0"}}'


@attrs.frozen
class Site:
    """Two replicas; the first alone has a worker, which serves all tenants."""

    first: RunningRole
    second: RunningRole

    @property
    def log(self) -> str:
        return self.first.log + self.second.log


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    parts = {name: directory / name for name in ("s3", "engine", "first", "second")}
    for part in parts.values():
        part.mkdir()
    (directory / "keys.json").write_bytes(key_set(EC))
    (directory / "secret").write_text(secrets.token_hex(32))
    with (
        running_postgres() as postgres,
        running_s3_server(parts["s3"]) as s3,
        running_engine(parts["engine"]) as engine,
    ):
        shared = {
            **s3.environment,
            "DATABASE_URL": postgres.create_database(),
            "INSTANCE_SECRET_FILE": str(directory / "secret"),
            "JWT_KEYS_FILE": str(directory / "keys.json"),
            "STORE_URL": f"s3://{BUCKET}/store",
            "TEMPORAL_ADDRESS": engine.address,
            "UPLOAD_S3_URL": f"s3://{BUCKET}/uploads",
        }
        with (
            running_role(parts["first"], **shared, JOBS_WORKER_SLOTS="1") as first,
            running_role(parts["second"], **shared) as second,
        ):
            yield Site(first, second)


def authorization(tenant: str) -> dict[str, str]:
    """Return the header field of a tenant."""
    claims: dict[str, Any] = {"rh-org-id": tenant}
    return {"Authorization": f"Bearer {EC.token(**claims)}"}


def ask(
    role: RunningRole, tenant: str, path: str, document: object = None, method: str | None = None
) -> Answer:
    """Send a request of a tenant to the composer API."""
    fields = authorization(tenant)
    body = None
    if document is not None:
        fields["Content-Type"] = "application/json"
        body = json.dumps(document).encode()
    return fetch(f"{role.url}{API}{path}", method or ("POST" if body else "GET"), headers=fields, body=body)


def compose(role: RunningRole, tenant: str, image_type: str, upload: str = "local") -> str:
    """Start a compose, and return its id."""
    target: dict[str, object] = {
        "type": upload,
        "upload_options": {"region": "us-east-1"} if upload == "aws.s3" else {},
    }
    image = {
        "architecture": "x86_64",
        "image_type": image_type,
        "repositories": [],
        "upload_targets": [target],
    }
    config = {"embedded": {"config": b64encode(CONFIG).decode()}}
    document = {
        "distribution": DISTRIBUTION,
        "image_requests": [image],
        "customizations": {"ignition": config},
    }
    answer = ask(role, tenant, "/compose", document)
    assert answer.status == HTTPStatus.CREATED, answer
    return answer.json()["id"]


def wait(site: Site, tenant: str, compose_id: str) -> dict[str, Any]:
    """Return the status of a compose, by the second replica, once it has succeeded."""

    def status() -> dict[str, Any]:
        document: dict[str, Any] = json.loads(ask(site.second, tenant, f"/composes/{compose_id}").body)
        return document

    wait_until(lambda: status()["status"] != "pending", lambda: site.log)
    assert status()["status"] == "success", status()
    return status()


def test_image_of_one_replica_is_downloaded_from_the_other(site: Site) -> None:
    compose_id = compose(site.second, "1", "vsphere")
    wait(site, "1", compose_id)
    found = [ask(role, "1", f"/composes/{compose_id}/download") for role in (site.first, site.second)]
    assert found[0].body == found[1].body
    assert found[0].headers["ETag"] == found[1].headers["ETag"]
    part = fetch(
        f"{site.second.url}{API}/composes/{compose_id}/download",
        headers={**authorization("1"), "Range": "bytes=1000-1999"},
    )
    assert (part.status, part.body) == (HTTPStatus.PARTIAL_CONTENT, found[0].body[1000:2000])


@pytest.mark.parametrize("image_type", ["live-installer", "guest-image"])
def test_image_is_uploaded_and_read_by_its_signed_url(site: Site, image_type: str, tmp_path: Path) -> None:
    compose_id = compose(site.first, "1", image_type, "aws.s3")
    status = wait(site, "1", compose_id)
    (image,) = status["image_statuses"]
    (upload,) = image["upload_statuses"]
    assert (upload["status"], upload["type"]) == ("success", "aws.s3")
    with urlopen(upload["options"]["url"]) as answer:  # noqa: S310 - of the test's own server
        uploaded = answer.read()
    downloaded = ask(site.second, "1", f"/composes/{compose_id}/download").body
    assert hashlib.sha256(uploaded).digest() == hashlib.sha256(downloaded).digest()
    if image_type == "live-installer":
        (tmp_path / "live.iso").write_bytes(uploaded)
        assert run_client("coreos-installer", "iso", "ignition", "show", tmp_path / "live.iso") == CONFIG


def test_composes_of_another_tenant_are_not_there(site: Site) -> None:
    compose_id = compose(site.first, "1", "live-installer")
    wait(site, "1", compose_id)
    for path in ("", *(f"/{name}" for name in ("metadata", "logs", "manifests", "sboms", "download"))):
        answer = ask(site.second, "2", f"/composes/{compose_id}{path}")
        assert (answer.status, answer.json()["id"]) == (HTTPStatus.NOT_FOUND, "15"), path
    assert ask(site.second, "2", f"/composes/{compose_id}", method="DELETE").status == HTTPStatus.NOT_FOUND
    listed = json.loads(ask(site.second, "2", "/composes/").body)
    assert compose_id not in [each["id"] for each in listed]
    local = json.loads(
        run_client(
            "curl",
            "-sf",
            "--unix-socket",
            site.first.data_dir / "jobs.sock",
            f"http://localhost{API}/composes/",
        )
    )
    assert local == []


def test_request_without_token_is_refused(site: Site) -> None:
    assert fetch(f"{site.first.url}{API}/composes/").status == HTTPStatus.UNAUTHORIZED
    assert fetch(f"{site.first.url}{API}/openapi").status == HTTPStatus.OK
