"""Uploads to S3 and to registries by the role and its own worker."""

from __future__ import annotations

import hashlib
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.clients import run_client
from tests.acceptance.service import fetch
from tests.jobs.running_role import RunningRole, running_role, wait_until
from tests.registry_server import running_docker_registry
from tests.s3_server import BUCKET, REGION, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.registry_server import RegistryServer
    from tests.s3_server import S3Server

pytestmark = pytest.mark.acceptance

CONFIG = b'{"ignition": {"version": "3.3.0"}, "passwd": {"users": [{"name": "s3cr3t"}]}}'
S3_TARGET = {"type": "aws.s3", "upload_options": {"region": REGION}}
KUBEVIRT = {"type": "oci", "upload_options": {"name": "team/rhcos", "form": "container-disk"}}
CONTAINER = {"type": "container", "upload_options": {"name": "team/disk"}}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def role(
    s3: S3Server, registry: RegistryServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningRole]:
    variables = {**s3.environment, "UPLOAD_S3_URL": f"s3://{BUCKET}/made"}
    variables |= {"UPLOAD_REGISTRY": f"oci://{registry.host}/made", "INSECURE_REGISTRIES": registry.host}
    with running_role(tmp_path_factory.mktemp("jobs"), **variables) as running:
        yield running


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with running_docker_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


def compose(role: RunningRole, image_type: str, *targets: object) -> tuple[str, dict[str, Any]]:
    """Compose an image; return the id, and its uploads by the types of their targets."""
    compose_id = role.start(image_type, config=CONFIG, targets=targets)
    status: dict[str, Any] = role.wait_until_ended(compose_id)
    assert status["status"] == "success", status
    return compose_id, {upload["type"]: upload for upload in status["image_status"]["upload_statuses"]}


@pytest.fixture(scope="module")
def disk(role: RunningRole) -> tuple[str, dict[str, Any]]:
    return compose(role, "guest-image", S3_TARGET, KUBEVIRT, CONTAINER)


def test_disk_is_pushed_to_a_registry_for_kubevirt(
    role: RunningRole, registry: RegistryServer, disk: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    compose_id, uploads = disk
    image = f"{registry.host}/made/team/rhcos:{compose_id}-2"
    assert (uploads["oci"]["status"], uploads["oci"]["options"]["url"]) == ("success", f"oci://{image}")
    run_client("skopeo", "copy", "--src-tls-verify=false", f"docker://{image}", f"dir:{tmp_path}")
    (layer,) = json.loads((tmp_path / "manifest.json").read_bytes())["layers"]
    with tarfile.open(tmp_path / layer["digest"].partition(":")[2]) as archive:
        pushed = archive.extractfile("disk/disk.qcow2")
        assert pushed is not None
        downloaded = role.get(f"/composes/{compose_id}/download").body
        assert hashlib.sha256(pushed.read()).digest() == hashlib.sha256(downloaded).digest()


def test_container_of_osbuild_composer_has_the_digest_of_its_manifest(
    registry: RegistryServer, disk: tuple[str, dict[str, Any]]
) -> None:
    compose_id, uploads = disk
    url = f"{registry.host}/made/team/disk:{compose_id}-3"
    found = run_client("skopeo", "inspect", "--tls-verify=false", f"docker://{url}")
    options = {"url": url, "digest": json.loads(found)["Digest"]}
    assert uploads["container"] == {"status": "success", "type": "container", "options": options}


def test_uploaded_disk_is_the_one_that_is_downloaded(
    role: RunningRole, disk: tuple[str, dict[str, Any]]
) -> None:
    check_uploaded(role, *disk)


def test_uploaded_iso_is_the_one_that_is_downloaded(role: RunningRole) -> None:
    check_uploaded(role, *compose(role, "live-installer", S3_TARGET))


def check_uploaded(role: RunningRole, compose_id: str, uploads: dict[str, Any]) -> None:
    upload = uploads["aws.s3"]
    assert upload["status"] == "success"
    uploaded = fetch(upload["options"]["url"])
    downloaded = role.get(f"/composes/{compose_id}/download")
    assert uploaded.status == 200
    assert hashlib.sha256(uploaded.body).digest() == hashlib.sha256(downloaded.body).digest()
    assert f"/{BUCKET}/made/{compose_id}/" in upload["options"]["url"]
    assert "X-Amz-Signature" not in role.log


@pytest.mark.soak
def test_upload_is_repeated_until_the_bucket_is_there_and_nothing_else_is(
    role: RunningRole, s3: S3Server
) -> None:
    s3.process.kill()
    s3.process.wait()
    compose_id = role.start("guest-image", config=CONFIG, targets=[S3_TARGET])

    def attempts() -> dict[str, int]:
        (build,) = json.loads(role.get(f"/composes/{compose_id}/logs").body)["image_builds"]
        return {step["step"]: step["attempt"] for step in build["steps"]}

    wait_until(lambda: attempts()["upload"] > 1, lambda: role.log)
    assert role.status(compose_id)["status"] == "pending"
    with running_s3_server(s3.directory.parent, s3.port):
        status: dict[str, Any] = role.wait_until_ended(compose_id)
        assert status["status"] == "success", status
        (upload,) = status["image_status"]["upload_statuses"]
        assert fetch(upload["options"]["url"]).status == 200
    assert attempts()["customize"] == 1
