"""Images that a role composes of a stream and of malicious bases, as clients download them."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from image_service.server.standalone.sample import unpack_sample_disk
from image_service.toolkit.commands import main
from tests import forks
from tests.acceptance.clients import run_client
from tests.acceptance.service import os_image
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.core.families.coreos.streams import stream, text
from tests.jobs.running_role import API, RunningRole, running_role, wait_until
from tests.server.catalog.origin import Origin, Reply, running
from tests.toolkit.coreos_disk import read_boot_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

CONFIG = b'{"ignition":{"version":"3.3.0"}}'
RELEASE = "44.1.2.3"
ROOTFS = bytes(range(256)) * 4000
ISO = live_iso_with_minimal(ROOTFS)


def publish(origin: Origin, directory: Path) -> None:
    """Offer a release with an ISO, a disk image for bare metal and one for QEMU."""
    packed = unpack_sample_disk(directory)
    (directory / "disk.raw").write_bytes(lzma.decompress(packed.read_bytes()))
    run_client("qemu-img", "convert", "-O", "qcow2", directory / "disk.raw", directory / "disk.qcow2")
    disk = directory / "disk.raw"
    assert main(["convert", str(disk), str(directory / "disk.ova"), "--format=ova", "--no-digest"]) == 0
    document = stream(RELEASE, origin=origin.url(""))
    artifacts = document["architectures"]["x86_64"]["artifacts"]
    formats = artifacts["metal"]["formats"]
    vmware = {"location": origin.url("/vmware.ova")}
    artifacts["vmware"] = {"release": RELEASE, "formats": {"ova": {"disk": vmware}}}
    qemu = {"location": origin.url("/qemu.qcow2.xz")}
    formats["raw.xz"] = {"disk": {"location": origin.url("/metal.raw.xz")}}
    artifacts["qemu"] = {"release": RELEASE, "formats": {"qcow2.xz": {"disk": qemu}}}
    for artifact, content in (
        (formats["iso"]["disk"], ISO),
        (formats["raw.xz"]["disk"], packed.read_bytes()),
        (vmware, (directory / "disk.ova").read_bytes()),
        (qemu, lzma.compress((directory / "disk.qcow2").read_bytes(), preset=1)),
    ):
        artifact["sha256"] = hashlib.sha256(content).hexdigest()
        origin.replies[artifact["location"].removeprefix(origin.url(""))] = [Reply(content)]
    origin.replies["/stable.json"] = [Reply(text(document))]


def offer_malicious_disks(directory: Path) -> list[dict[str, Any]]:
    """Return entries of disks that harm nothing but the composes that are made of them."""
    bomb = lzma.LZMACompressor(preset=0)
    with (directory / "bomb.xz").open("wb") as file:
        for _ in range(8):
            file.write(bomb.compress(bytes(1 << 20)))
        file.write(bomb.flush()[:-40])  # a stream that does not end
    (directory / "noise").write_bytes(hashlib.shake_256(b"").digest(1 << 20))
    names = {"4.90": "bomb.xz", "4.91": "noise", "4.92": "noise"}
    entries: list[dict[str, Any]] = [
        {**os_image(directory / name, version), "type": "metal-disk"} for version, name in names.items()
    ]
    entries[2]["sha256"] = "0" * 64
    return entries


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRole]:
    directory = tmp_path_factory.mktemp("jobs")
    with running() as origin:
        publish(origin, directory)
        source = {"stream": "stable", "url": origin.url("/stable.json"), "architectures": ["x86_64"]}
        with running_role(
            directory,
            COREOS_STREAMS=json.dumps([source]),
            OS_IMAGES=json.dumps(offer_malicious_disks(directory)),
            SIGNING_KEY_FILE=str(make_key(directory)),
        ) as started:
            wait_until(lambda: "stable" in started.get("/distributions").json(), lambda: started.log)
            yield started


def make_key(directory: Path) -> Path:
    """Write a private key, and its public key to ``keys.pem``; return the first."""
    path, key = directory / "signing.key", Ed25519PrivateKey.generate()
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (directory / "keys.pem").write_bytes(public)
    return path


def make(role: RunningRole, distribution: str, image_type: str) -> tuple[str, dict[str, Any]]:
    """Compose an image; return the id and the status at the end."""
    compose_id = role.start(image_type, distribution, config=CONFIG)
    return compose_id, role.wait_until_ended(compose_id)


def download(role: RunningRole, compose_id: str, path: Path) -> None:
    """Download an image as curl continues downloads: three parts, the last two with If-Range."""
    url = f"{role.url}{API}/composes/{compose_id}/download"
    etag = role.get(f"/composes/{compose_id}/download", {"Range": "bytes=0-0"}).headers["ETag"]
    for part in ("0-9999", "10000-99999", "100000-"):
        command = ("--silent", "--fail", "--range", part, "--header", f"If-Range: {etag}", url)
        with path.open("ab") as file:
            file.write(run_client("curl", *command))


def test_network_boot_archive_is_unpacked_by_tar(role: RunningRole, tmp_path: Path) -> None:
    compose_id, status = make(role, "stable", "pxe-tar-xz")
    assert status["status"] == "success", role.log
    archive = tmp_path / "pxe.tar.xz"
    download(role, compose_id, archive)
    run_client("xz", "--test", archive)
    run_client("tar", "-C", tmp_path, "-xJf", archive)
    assert (tmp_path / "rootfs.img").read_bytes() == ROOTFS
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "initrd.img",
        "pxe.tar.xz",
        "rootfs.img",
        "vmlinuz",
    ]


def test_minimal_iso_fetches_the_rootfs_from_the_stream(role: RunningRole, tmp_path: Path) -> None:
    compose_id, status = make(role, "stable", "network-installer")
    assert status["status"] == "success", role.log
    download(role, compose_id, tmp_path / "minimal.iso")
    shown = run_client("coreos-installer", "iso", "kargs", "show", tmp_path / "minimal.iso").decode()
    assert "live-rootfs.x86_64.img" in shown
    assert run_client("coreos-installer", "iso", "ignition", "show", tmp_path / "minimal.iso") == CONFIG


@pytest.mark.parametrize("image_type", ["live-installer", "network-installer"])
def test_iso_is_verified_by_its_statement(role: RunningRole, tmp_path: Path, image_type: str) -> None:
    compose_id, _ = make(role, "stable", image_type)
    iso, statement = tmp_path / "image.iso", tmp_path / "image.iso.intoto.json"
    download(role, compose_id, iso)

    def is_made() -> bool:
        answer = role.get(f"/composes/{compose_id}/statement")
        statement.write_bytes(answer.body)
        return answer.status != HTTPStatus.SERVICE_UNAVAILABLE

    wait_until(is_made, lambda: role.log)
    keys = role.data_dir.with_name("keys.pem")
    verify = (sys.executable, "-m", "image_service.cli", "verify", iso)
    options = ("--statement", statement, "--key", keys, "--base-sha256", hashlib.sha256(ISO).hexdigest())
    verified = forks.run([*map(str, (*verify, *options)), "--json"])
    assert verified.returncode == 0, verified
    shown = json.loads(verified.stdout)
    assert (shown["verified"], shown["faults"]) == (True, [])
    assert {"purpose": "ignition", "length": len(CONFIG), "detail": ""} in shown["added"]
    with iso.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    refused = forks.run([*map(str, (*verify, *options)), "--json"])
    assert (refused.returncode, json.loads(refused.stdout)["verified"]) == (1, False)


@pytest.mark.parametrize("image_type", ["pxe-tar-xz", "guest-image"])
def test_other_images_have_provenance_only(role: RunningRole, image_type: str) -> None:
    compose_id, _ = make(role, "stable", image_type)
    answer = role.get(f"/composes/{compose_id}/statement")
    assert (answer.status, answer.json()["code"]) == (400, "IMAGE-BUILDER-COMPOSER-1022")
    assert "/provenance" in answer.json()["details"]


@pytest.mark.parametrize(
    ("image_type", "platform", "image_format"),
    [("guest-image", "qemu", "qcow2"), ("vsphere", "vmware", "vmdk")],
    ids=["qcow2", "VMDK of an OVA"],
)
def test_disk_of_the_platform_is_customized(
    role: RunningRole, tmp_path: Path, image_type: str, platform: str, image_format: str
) -> None:
    compose_id, status = make(role, "stable", image_type)
    assert status["status"] == "success", role.log
    download(role, compose_id, tmp_path / "disk")
    command = ("convert", "-f", image_format, "-O", "raw", tmp_path / "disk", tmp_path / "disk.raw")
    run_client("qemu-img", *command)
    assert read_boot_file(tmp_path / "disk.raw", "ignition/config.ign") == CONFIG
    statement = json.loads(role.get(f"/composes/{compose_id}/provenance").body)["items"][0]
    base, _ = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert base["uri"] == f"urn:image-service:base:{RELEASE}:x86_64:{platform}"


def test_platform_without_a_disk_is_made_of_bare_metal(role: RunningRole) -> None:
    compose_id, status = make(role, "stable", "azure")
    assert status["status"] == "success", role.log
    metadata = json.loads(role.get(f"/composes/{compose_id}/provenance").body)["items"][0]
    base, _ = metadata["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert base["uri"].endswith(":metal")


@pytest.mark.parametrize(
    ("version", "step", "reason"),
    [
        ("4.90", "fetch", "the file ends within the compressed data"),
        ("4.91", "customize", ""),
        ("4.92", "fetch", "it must be 0000"),
    ],
    ids=["bomb", "noise", "another digest"],
)
def test_malicious_disk_fails_its_compose_alone(
    role: RunningRole, version: str, step: str, reason: str
) -> None:
    _, status = make(role, f"rhcos-{version}", "minimal-raw")
    error = status["image_status"]["error"]
    assert status["status"] == "failure"
    assert step in error["reason"]
    assert reason in error["reason"]
    _, status = make(role, "stable", "live-installer")
    assert status["status"] == "success"
