"""Publishing to a real registry, read by skopeo; and to one that cuts uploads."""

from __future__ import annotations

import hashlib
import json
import tarfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import pytest

from image_service.common.registry import pusher
from tests.acceptance.clients import run_client
from tests.registry_origin import PASSWORD, auth_entry
from tests.registry_server import running_crane_registry, running_docker_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.toolkit.transfer.conftest import Toolkit

MIB = 1 << 20


@attrs.frozen
class _Registry:
    """A registry with a password."""

    host: str
    ca_file: Path
    auth_file: Path
    directory: Path


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Registry]:
    """Run a registry for the tests of this module."""
    directory, client = tmp_path_factory.mktemp("registry"), tmp_path_factory.mktemp("client")
    with running_docker_registry(directory, "basic") as server:
        assert server.ca_file is not None
        auth_file, ca_file = client / "auth.json", client / "certs" / "ca.crt"
        auth_file.write_text(json.dumps({"auths": {server.host: auth_entry()}}))
        ca_file.parent.mkdir()
        ca_file.write_bytes(server.ca_file.read_bytes())
        yield _Registry(server.host, ca_file, auth_file, directory)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return a raw disk with a boot sector."""
    path = tmp_path / "disk.raw"
    path.write_bytes((bytes(510) + b"\x55\xaa" + b"content " * 64 * 1024).ljust(3 * MIB + 512, b"\0"))
    return path


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def access(registry: _Registry) -> tuple[object, ...]:
    return "--authfile", registry.auth_file, "--ca-file", registry.ca_file


def pulled(registry: _Registry, name: str, directory: Path) -> tuple[dict[str, Any], list[bytes]]:
    """Return the manifest that skopeo copies, whose digests it checks, and its layers."""
    run_client(
        "skopeo", "copy", "--src-authfile", registry.auth_file, "--src-cert-dir", registry.ca_file.parent,
        f"docker://{registry.host}/{name}", f"dir:{directory}",
    )  # fmt: skip
    manifest = json.loads((directory / "manifest.json").read_bytes())
    files = [directory / layer["digest"].partition(":")[2] for layer in manifest["layers"]]
    return manifest, [file.read_bytes() for file in files]


@pytest.mark.acceptance
def test_artifact_and_container_disk_are_read_from_a_registry(
    registry: _Registry, raw: Path, tmp_path: Path, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pusher, "CHUNK_BYTES", MIB)
    place = f"oci://{registry.host}/team/disk"
    done = toolkit("publish", raw, f"{place}:v1", "--annotation", "a=b", *access(registry))
    assert done.status == 0, done.printed
    assert done.report["output"]["location"] == f"{place}@{done.report['output']['digest']}"
    manifest, (layer,) = pulled(registry, "team/disk:v1", tmp_path / "artifact")
    assert layer == raw.read_bytes()
    assert manifest["artifactType"] == "application/vnd.kubevirt.disk.raw"
    assert manifest["annotations"] == {"a": "b"}
    assert manifest["layers"][0]["mediaType"] == manifest["artifactType"]
    titled = {"org.opencontainers.image.title": "disk.raw", "disktype": "raw"}
    assert manifest["layers"][0]["annotations"] == titled

    again = toolkit("publish", raw, f"{place}:v2", "--annotation", "a=b", *access(registry))
    assert again.report["output"] == done.report["output"]
    elsewhere = f"oci://{registry.host}/other:v1"
    mounted = toolkit("publish", raw, elsewhere, "--mount-from", "team/disk", *access(registry))
    assert mounted.status == 0, mounted.printed
    assert [*registry.directory.rglob("_uploads/*")] == []

    disk = toolkit(
        "publish", raw, f"{place}:kubevirt", "--form", "container-disk", "--architecture", "aarch64",
        *access(registry),
    )  # fmt: skip
    assert disk.status == 0, disk.printed
    manifest, (layer,) = pulled(registry, "team/disk:kubevirt", tmp_path / "disk")
    config = json.loads((tmp_path / "disk" / manifest["config"]["digest"].partition(":")[2]).read_bytes())
    assert (config["architecture"], config["rootfs"]["diff_ids"]) == ("arm64", [sha256(layer)])
    (tmp_path / "layer.tar").write_bytes(layer)
    with tarfile.open(tmp_path / "layer.tar") as archive:
        directory, member = archive.getmembers()
        assert (directory.name, member.name, member.mode, member.uid) == ("disk", "disk/disk.raw", 0o440, 107)
        extracted = archive.extractfile(member)
        assert extracted is not None
        assert extracted.read() == raw.read_bytes()
    assert PASSWORD not in done.printed + disk.printed


@pytest.mark.acceptance
def test_crane_and_a_registry_with_tokens_take_uploads_in_parts(
    raw: Path, tmp_path: Path, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pusher, "CHUNK_BYTES", MIB)
    auth_file = tmp_path / "auth.json"
    (tmp_path / "crane").mkdir()
    with running_crane_registry(tmp_path / "crane") as crane:
        done = toolkit("publish", raw, f"oci://{crane.host}/tests/iso:v1", "--insecure-registry")
        assert done.status == 0, done.printed
        assert (
            run_client("crane", "digest", f"{crane.host}/tests/iso:v1").decode().strip()
            == (done.report["output"]["digest"])
        )
        layer = f"{crane.host}/tests/iso@{sha256(raw.read_bytes())}"
        assert run_client("crane", "blob", layer) == raw.read_bytes()
    (tmp_path / "tokens").mkdir()
    with running_docker_registry(tmp_path / "tokens", "token") as server:
        assert server.ca_file is not None
        auth_file.write_text(json.dumps({"auths": {server.host: auth_entry()}}))
        place, trust = f"oci://{server.host}/tests/iso:v1", ("--ca-file", server.ca_file)
        again = toolkit("publish", raw, place, "--authfile", auth_file, *trust)
        assert again.report["output"]["digest"] == done.report["output"]["digest"], again.printed
        refused = toolkit("publish", raw, place, *trust)
        assert "token server answered a request without credentials with status 401" in refused.reason


@pytest.mark.acceptance
def test_refusals_of_a_registry_are_named(registry: _Registry, raw: Path, toolkit: Toolkit) -> None:
    place = f"oci://{registry.host}/team/refused"
    trusted = toolkit("publish", raw, place, "--ca-file", registry.ca_file)
    assert "needs credentials, and there are none for it" in trusted.reason
    assert "certificate" in toolkit("publish", raw, place, "--authfile", registry.auth_file).reason
    any_file = toolkit("publish", raw, place, "--as-is", "--form", "container-disk", *access(registry))
    assert "a container disk is raw or qcow2" in any_file.reason


class _Cutting(BaseHTTPRequestHandler):
    """A registry that cuts uploads, each behind the first bytes of a part."""

    protocol_version = "HTTP/1.1"
    cuts: ClassVar[list[int]] = []
    stored: ClassVar[bytearray] = bytearray()
    blobs: ClassVar[dict[str, bytes]] = {}
    wrong_digest: ClassVar[str] = ""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, **fields: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **fields}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_HEAD(self) -> None:
        """Tell whether a blob is there."""
        self._answer(200 if self.path.rpartition("/")[2] in self.blobs else 404)

    def do_POST(self) -> None:
        """Begin an upload."""
        self.stored.clear()
        self._answer(202, Location="/upload?state=0")

    def do_GET(self) -> None:
        """Tell the progress of an upload, or that this is a registry."""
        if self.path == "/v2/":
            self._answer(200)
            return
        self._answer(204, Range=f"0-{max(0, len(self.stored) - 1)}", Location="/upload?state=9")

    def do_PATCH(self) -> None:
        """Store a part, or what comes before a cut."""
        length = int(self.headers["Content-Length"])
        if int(self.headers["Content-Range"].partition("-")[0]) != len(self.stored):
            self.rfile.read(length)
            self._answer(416)
            return
        if self.cuts:
            self.stored.extend(self.rfile.read(min(length, self.cuts.pop(0))))
            self.close_connection = True
            return
        self.stored.extend(self.rfile.read(length))
        self._answer(202, Location="/upload?state=1", Range=f"0-{len(self.stored) - 1}")

    def do_PUT(self) -> None:
        """End an upload, or store a manifest."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        content = body if "/manifests/" in self.path else bytes(self.stored)
        self.blobs[sha256(content)] = content
        self._answer(201, Docker_Content_Digest=self.wrong_digest or sha256(content))


@contextmanager
def cutting_registry(*cuts: int, wrong_digest: str = "") -> Iterator[str]:
    """Run a registry that cuts parts behind so many bytes; yield its host."""
    _Cutting.cuts, _Cutting.wrong_digest = [*cuts], wrong_digest
    _Cutting.blobs.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Cutting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("cuts", [(), (0, 1), (0, 5000, 0, 0), (MIB - 1, 1, 777)])
def test_cut_upload_continues(
    cuts: tuple[int, ...], raw: Path, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pusher, "CHUNK_BYTES", MIB)
    with cutting_registry(*cuts) as host:
        done = toolkit("publish", raw, f"oci://{host}/a:b", "--insecure-registry")
    assert done.status == 0, done.printed
    assert _Cutting.blobs[sha256(raw.read_bytes())] == raw.read_bytes()
    assert json.loads(_Cutting.blobs[done.report["output"]["digest"]])["schemaVersion"] == 2


def test_upload_that_brings_nothing_ends_and_leaves_no_manifest(raw: Path, toolkit: Toolkit) -> None:
    with cutting_registry(*[0] * 9) as host:
        failed = toolkit("publish", raw, f"oci://{host}/a:b", "--insecure-registry")
    assert failed.status != 0
    assert f"{host}/a: upload of blob {sha256(raw.read_bytes())}" in failed.reason
    assert _Cutting.blobs == {}


def test_digest_that_the_registry_states_is_compared(raw: Path, toolkit: Toolkit) -> None:
    with cutting_registry(wrong_digest=sha256(b"other")) as host:
        failed = toolkit("publish", raw, f"oci://{host}/a:b", "--insecure-registry")
    assert f"stored {sha256(b'other')} in the place of" in failed.reason


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("oci://host/UPPER", "repository of lower-case"),
        ("oci://host/a#/disk", "must have no # and path"),
        ("oci://host/a:b:c", "tag"),
        ("s4://bucket/key", "is not s3://BUCKET/KEY"),
    ],
)
def test_places_that_are_not_valid_are_usage_errors(
    place: str, says: str, raw: Path, toolkit: Toolkit
) -> None:
    assert says in toolkit("publish", raw, place).reason
