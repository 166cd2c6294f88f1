"""The registry of finished composes, with clients of registries: each tenant sees its own."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.acceptance.clients import run_client
from tests.acceptance.service import fetch
from tests.jobs.running_role import API
from tests.jobs.tenant_clients import ask, finish, running_with_tenants, start, token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Answer
    from tests.jobs.running_role import RunningRole

pytestmark = pytest.mark.acceptance

OURS, OTHERS = "1", "2"


@attrs.frozen
class Site:
    """A role with a finished disk of one tenant."""

    role: RunningRole
    compose_id: str
    disk: bytes

    @property
    def repository(self) -> str:
        return f"composes/{self.compose_id}"

    @property
    def name(self) -> str:
        return f"{self.role.url.removeprefix('http://')}/{self.repository}"

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.disk).hexdigest()}"

    def get(self, path: str, tenant: str | None = OURS, **fields: str) -> Answer:
        if tenant is not None:
            pair = base64.b64encode(f"any:{token(tenant)}".encode()).decode()
            fields["Authorization"] = f"Basic {pair}"
        return fetch(f"{self.role.url}/v2/{path}", headers=fields)

    def catalog(self, tenant: str) -> list[str]:
        found: list[str] = json.loads(self.get("_catalog", tenant).body)["repositories"]
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("jobs")
    with running_with_tenants(directory, JOBS_APIS="composer,worker,registry") as role:
        compose_id = start(role, OURS, "guest-image")
        finish(role, OURS, compose_id)
        yield Site(role, compose_id, ask(role, f"{API}/composes/{compose_id}/download", OURS).body)


def test_skopeo_copies_the_disk_and_oras_pulls_it(site: Site, tmp_path: Path) -> None:
    creds = ("--src-creds", f"any:{token(OURS)}")
    copied = f"docker://{site.name}:latest"
    run_client("skopeo", "copy", "--src-tls-verify=false", *creds, copied, f"dir:{tmp_path}/copy")
    assert (tmp_path / "copy" / site.digest.removeprefix("sha256:")).read_bytes() == site.disk
    oras = ("oras", "pull", "--plain-http", "--username", "any", "--password", token(OURS))
    run_client(*oras, f"{site.name}:latest", "--output", tmp_path / "oras")
    (file,) = (tmp_path / "oras").iterdir()
    assert (file.suffix, file.read_bytes()) == (".qcow2", site.disk)


def test_manifest_names_the_disk_and_ranges_are_served(site: Site) -> None:
    answer = site.get(f"{site.repository}/manifests/latest")
    (layer,) = json.loads(answer.body)["layers"]
    assert (layer["digest"], layer["size"]) == (site.digest, len(site.disk))
    assert layer["mediaType"] == "application/vnd.kubevirt.disk.qcow2"
    digest = answer.headers["Docker-Content-Digest"]
    assert site.get(f"{site.repository}/manifests/{digest}").body == answer.body
    part = site.get(f"{site.repository}/blobs/{site.digest}", Range="bytes=100-199")
    assert (part.status, part.body) == (206, site.disk[100:200])
    config = json.loads(answer.body)["config"]["digest"]
    assert site.get(f"{site.repository}/blobs/{config}").body == b"{}"
    tags: dict[str, Any] = json.loads(site.get(f"{site.repository}/tags/list").body)
    assert tags == {"name": site.repository, "tags": ["latest"]}


def test_others_see_nothing_of_it(site: Site) -> None:
    assert (site.catalog(OURS), site.catalog(OTHERS)) == ([site.repository], [])
    paths = ("tags/list", "manifests/latest", f"blobs/{site.digest}")
    assert {site.get(f"{site.repository}/{path}", OTHERS).status for path in paths} == {404}
    absent = "composes/00000000-0000-4000-8000-000000000000/manifests/latest"
    assert site.get(absent).body == site.get(f"{site.repository}/manifests/latest", OTHERS).body


def test_first_request_is_asked_for_credentials(site: Site) -> None:
    challenge = 'Basic realm="image-service"'
    for path in ("", "_catalog", f"{site.repository}/manifests/latest"):
        refused = site.get(path, None)
        assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, challenge), path
    wrong = base64.b64encode(b"any:wrong").decode()
    assert site.get("", None, Authorization=f"Basic {wrong}").status == 401
    assert site.get("", None, Authorization=f"Bearer {token(OURS)}").status == 200
    assert site.get("").headers["Docker-Distribution-Api-Version"] == "registry/2.0"


def test_what_is_not_there_is_404_and_nothing_is_written(site: Site) -> None:
    for path in ("openapi", "errors/1", "x", "composes/x/manifests/latest", f"{site.repository}/manifests/x"):
        assert site.get(path).status == 404, path
    fields = {"Authorization": f"Bearer {token(OURS)}", "Content-Type": "application/json"}
    upload = f"{site.role.url}/v2/{site.repository}/blobs/uploads/"
    assert fetch(upload, "POST", headers=fields, body=b"{}").status in {404, 405}
    basic = base64.b64encode(f"any:{token(OURS)}".encode()).decode()
    status = fetch(f"{site.role.url}{API}/composes/", headers={"Authorization": f"Basic {basic}"}).status
    assert status == 401, "of the registry only"
