"""The read-only registry of the service, with clients of registries: skopeo, crane, oras."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.server.serving.registry import EMPTY
from tests.acceptance.clients import run_client
from tests.acceptance.service import SERVE, fetch, os_image, run_service
from tests.acceptance.tenants import wait_for
from tests.acceptance.test_links import KEY, Owner
from tests.acceptance.test_links import VERSION as OWNERS_VERSION
from tests.acceptance.upstream import running
from tests.core.formats.filesystems.iso_builder import build_live_iso

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.service import Answer, Certificate, Service

pytestmark = pytest.mark.acceptance

VERSION = "44.1"
CONFIG = {"ignition": {"version": "3.4.0"}}
BASIC = {"Authorization": "Basic Og=="}  # without user and password, as skopeo sends it


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("service")
    iso = directory / "live.iso"
    iso.write_bytes(build_live_iso())
    environment = {"SERVE_REGISTRY": "true", "WORKERS": "2"}
    with run_service(directory, [os_image(iso, VERSION)], environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def repository(service: Service) -> str:
    return f"byid/{service.register(VERSION, CONFIG)}/{VERSION}/x86_64/full.iso"


@pytest.fixture(scope="module")
def image(service: Service, repository: str) -> bytes:
    return service.get_image(f"/{repository}").body


def reference(service: Service, repository: str) -> str:
    return f"{service.url.removeprefix('http://')}/{repository}"


def ask(service: Service, path: str, **fields: str) -> Answer:
    return service.get(f"/v2/{path}", fields)


def test_skopeo_copies_the_image(service: Service, repository: str, image: bytes, tmp_path: Path) -> None:
    source = f"docker://{reference(service, repository)}:latest"
    run_client("skopeo", "copy", "--src-tls-verify=false", source, f"dir:{tmp_path}/copy")
    digest = hashlib.sha256(image).hexdigest()
    assert (tmp_path / "copy" / digest).read_bytes() == image
    inspected = json.loads(run_client("skopeo", "inspect", "--raw", "--tls-verify=false", source))
    assert inspected["layers"][0]["digest"] == f"sha256:{digest}"


def test_crane_pulls_by_tag_and_by_digest(
    service: Service, repository: str, image: bytes, tmp_path: Path
) -> None:
    name = reference(service, repository)
    digest = run_client("crane", "digest", "--insecure", f"{name}:latest").decode().strip()
    blob = f"{name}@sha256:{hashlib.sha256(image).hexdigest()}"
    assert run_client("crane", "blob", "--insecure", blob) == image
    manifest = run_client("crane", "manifest", "--insecure", f"{name}@{digest}")
    assert f"sha256:{hashlib.sha256(manifest).hexdigest()}" == digest
    run_client("crane", "pull", "--insecure", "--format=oci", f"{name}:latest", tmp_path / "layout")
    blobs = {path.name: path for path in (tmp_path / "layout" / "blobs" / "sha256").iterdir()}
    assert blobs[hashlib.sha256(image).hexdigest()].read_bytes() == image


def test_oras_pulls_a_file(service: Service, repository: str, image: bytes, tmp_path: Path) -> None:
    name = reference(service, repository)
    run_client("oras", "pull", "--plain-http", f"{name}:latest", "--output", tmp_path)
    (file,) = tmp_path.glob("*.iso")
    assert file.read_bytes() == image
    assert run_client("oras", "repo", "tags", "--plain-http", name) == b"latest\n"


def test_ranges_of_a_blob_are_those_of_the_image(service: Service, repository: str, image: bytes) -> None:
    path = f"{repository}/blobs/sha256:{hashlib.sha256(image).hexdigest()}"
    part = ask(service, path, Range="bytes=40000-49999")
    assert (part.status, part.body) == (206, image[40000:50000])
    assert part.headers["Docker-Content-Digest"] == path.rpartition("/")[2]
    assert part.headers["ETag"] == service.get(f"/{repository}", method="HEAD").headers["ETag"]


def test_first_request_is_asked_for_credentials_that_may_be_empty(service: Service) -> None:
    refused = ask(service, "")
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, 'Basic realm="image-service"')
    accepted = ask(service, "", **BASIC)
    assert (accepted.status, accepted.headers["Docker-Distribution-API-Version"]) == (200, "registry/2.0")
    assert ask(service, "_catalog", **BASIC).body == b'{"repositories": []}'


def test_what_is_not_there_is_404(service: Service, repository: str, image: bytes) -> None:
    other = os.urandom(32).hex()
    unknown = f"byid/00000000-0000-4000-8000-000000000000/{VERSION}/x86_64/full.iso"
    for path in (
        f"{repository}/manifests/sha256:{other}",
        f"{repository}/blobs/sha256:{other}",
        f"{repository}/blobs/latest",
        f"{repository}/manifests/other",
        f"{repository}.sha256/manifests/latest",
        f"{unknown}/manifests/latest",
        f"{unknown}/blobs/sha256:{hashlib.sha256(image).hexdigest()}",
        f"{unknown}/tags/list",
        "library/busybox/manifests/latest",
        "byid/../manifests/latest",
        "x",
    ):
        assert ask(service, path).status == 404, path


def test_nothing_is_written(service: Service, repository: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert fetch(f"{service.url}/v2/{repository}/blobs/uploads/", method).status in {404, 405}


def test_blob_of_a_changed_image_is_the_old_one_or_none(service: Service) -> None:
    identity = service.register(VERSION, CONFIG)
    repository = f"byid/{identity}/{VERSION}/x86_64/full.iso"
    layer = json.loads(ask(service, f"{repository}/manifests/latest").body)["layers"][0]
    changed = {"ignition_config_override": json.dumps({**CONFIG, "storage": {}})}
    assert (
        fetch(
            f"{service.api_url}/api/assisted-install/v2/infra-envs/{identity}",
            "PATCH",
            body=json.dumps(changed).encode(),
            headers={"Content-Type": "application/json"},
        ).status
        == 201
    )
    answer = ask(service, f"{repository}/blobs/{layer['digest']}")
    assert answer.status == 404 or f"sha256:{hashlib.sha256(answer.body).hexdigest()}" == layer["digest"]


def basic(password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'any:{password}'.encode()).decode()}"}


def test_password_is_the_api_key(tmp_path: Path, certificate: Certificate) -> None:
    iso = tmp_path / "live.iso"
    iso.write_bytes(build_live_iso())
    with running(certificate) as upstream:
        owner = Owner(upstream)
        repository = owner.path.partition("?")[0].strip("/")
        environment = {**upstream.environment, "SERVE_REGISTRY": "true"}
        images = [os_image(iso, OWNERS_VERSION)]
        with run_service(tmp_path, images, command=SERVE, environment=environment, probe="/live") as service:
            wait_for(lambda: service.get("/health").status == 200)
            manifest = ask(service, f"{repository}/manifests/latest", **basic(KEY))
            layer = json.loads(manifest.body)["layers"][0]["digest"]
            paths = [f"{repository}/{path}" for path in ("tags/list", "manifests/latest", f"blobs/{layer}")]
            assert [ask(service, path, **basic(KEY)).status for path in paths] == [200, 200, 200]
            for fields in ({}, BASIC, basic("other")):
                for path in paths:
                    refused = ask(service, path, **fields)
                    assert (refused.status, refused.headers["WWW-Authenticate"]) == (
                        401,
                        'Basic realm="image-service"',
                    )
            source = f"docker://{reference(service, repository)}:latest"
            target = f"dir:{tmp_path}/copy"
            run_client(
                "skopeo", "copy", "--src-tls-verify=false", "--src-creds", f"any:{KEY}", source, target
            )
            assert (tmp_path / "copy" / layer.removeprefix("sha256:")).stat().st_size == iso.stat().st_size
            oras = ("oras", "pull", "--plain-http", "--username", "any", "--password", KEY)
            run_client(*oras, source.removeprefix("docker://"), "--output", tmp_path / "oras")
            assert KEY not in service.output.decode()


def test_empty_config_is_a_blob(service: Service, repository: str) -> None:
    manifest = json.loads(ask(service, f"{repository}/manifests/latest").body)
    assert ask(service, f"{repository}/blobs/{manifest['config']['digest']}").body == EMPTY


def test_ironic_downloads_the_image(tmp_path: Path, certificate: Certificate) -> None:
    python = os.environ.get("IRONIC")
    if not python:  # 110 packages of 320 MB; so it is optional under REQUIRE_CLIENTS=1, too
        pytest.skip("optional client: IRONIC does not name a Python that has ironic of PyPI")
    iso = tmp_path / "live.iso"
    iso.write_bytes(build_live_iso())
    with running(certificate) as upstream:
        owner = Owner(upstream)
        repository = owner.path.partition("?")[0].strip("/")
        environment = {**upstream.environment, "SERVE_REGISTRY": "true"}
        images = [os_image(iso, OWNERS_VERSION)]
        with run_service(
            tmp_path, images, command=SERVE, certificate=certificate, environment=environment, probe="/live"
        ) as service:
            wait_for(lambda: service.get("/health").status == 200)
            image = service.get(owner.path).body
            name = f"oci://{service.url.removeprefix('https://')}/{repository}"
            fetched = tmp_path / "fetched"
            program = [python, Path(__file__).with_name("ironic_oci.py")]
            manifest = ask(service, f"{repository}/manifests/latest", **basic(KEY))
            identity = manifest.headers["Docker-Content-Digest"]
            arguments = (f"{name}:latest", identity, "any", KEY, certificate.ca, fetched)
            told = json.loads(run_client(*map(str, (*program, *arguments))))
            assert fetched.read_bytes() == image
            digest = hashlib.sha256(image).hexdigest()
            assert told["checksum"] == f"sha256:{digest}"
            assert told["found"]["image_checksum"] == digest
            shown = {"size": len(image), "checksum": digest, "digest": f"sha256:{digest}"}
            assert told["shown"] == {**shown, "image_type": "artifact"}
