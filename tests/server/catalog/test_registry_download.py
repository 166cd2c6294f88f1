"""Downloads from registries: artifacts that are resumed, files in layers, and what neither may be."""

from __future__ import annotations

import hashlib
import json
import tarfile
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import BaseImageError, Unavailable
from image_service.server.catalog.download import partial_file
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.settings.settings import Settings
from tests.registry_origin import OCI_MANIFEST, PASSWORD, RAW, RegistryOrigin, auth_entry, layer_of
from tests.server.catalog.origin import Reply

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.server.catalog.origin import Origin, ReceivedRequest

CONTENT = bytes(range(256)) * 4096
PATH = "coreos/coreos-x86_64.iso"


@attrs.frozen
class Fetch:
    """Fetches from a registry to one partial file."""

    registry: RegistryOrigin
    partial: Path

    def __call__(
        self,
        url: str,
        report: Callable[[int, int | None], None] = lambda *_: None,
        architecture: str = "x86_64",
        **environ: str,
    ) -> bytes:
        environ = {"INSECURE_REGISTRIES": self.registry.host, "DATA_DIR": "/tmp", **environ}
        settings = Settings.from_environment(environ, standalone=True)
        client = OriginClient.from_settings(settings.download, registries=settings.registries)
        download_file(client, url, self.partial, Interruption(), report, architecture)
        return self.partial.read_bytes()

    @property
    def ranges(self) -> list[str | None]:
        return [each.headers["Range"] for each in self.registry.origin.requests if "/blobs/" in each.target]


@pytest.fixture
def fetch(origin: Origin, tmp_path: Path) -> Fetch:
    """An empty registry."""
    return Fetch(RegistryOrigin(origin), tmp_path / ".rhcos-x.iso.part")


def spoil_once(registry: RegistryOrigin, change: Callable[[Reply], Reply]) -> None:
    def spoil(_: ReceivedRequest, reply: Reply) -> Reply:
        registry.spoil = lambda _, reply: reply
        return change(reply)

    registry.spoil = spoil


def test_artifact(fetch: Fetch) -> None:
    fetch.registry.manifest([(CONTENT, RAW)])
    seen: list[tuple[int, int | None]] = []
    assert fetch(fetch.registry.url(), lambda *progress: seen.append(progress)) == CONTENT
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert fetch(fetch.registry.url()) == CONTENT
    assert fetch.ranges == [None]  # the complete file is known by its digest


def test_interrupted_artifact_is_resumed(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_file, "SYNC_BYTES", 1)
    fetch.registry.manifest([(CONTENT, RAW)])

    def stop(done: int, _: int | None) -> None:
        if done:
            raise Interrupted

    with pytest.raises(Interrupted):
        fetch(fetch.registry.url(), stop)
    known = fetch.partial.stat().st_size
    assert 0 < known < len(CONTENT)
    assert fetch(fetch.registry.url()) == CONTENT
    assert fetch.ranges == [None, f"bytes={known}-{len(CONTENT) - 1}"]


def test_moved_tag_discards_what_was_fetched_of_another_blob(fetch: Fetch) -> None:
    fetch.registry.manifest([(CONTENT, RAW)])
    assert fetch(fetch.registry.url()) == CONTENT
    fetch.registry.manifest([(CONTENT[::-1], RAW)])
    assert fetch(fetch.registry.url()) == CONTENT[::-1]


def test_wrong_bytes_are_refused_and_not_kept(fetch: Fetch) -> None:
    fetch.registry.manifest([(CONTENT, RAW)])
    spoil_once(fetch.registry, lambda reply: attrs.evolve(reply, body=CONTENT[::-1]))
    with pytest.raises(Unavailable, match=r"the digest of blob sha256:\w+ is sha256:") as caught:
        fetch(fetch.registry.url())
    assert fetch.registry.host in caught.value.detail
    assert fetch(fetch.registry.url()) == CONTENT
    assert fetch.ranges == [None, None]


def test_bytes_that_were_changed_on_disk_are_noticed(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_file, "SYNC_BYTES", 1)
    fetch.registry.manifest([(CONTENT, RAW)])

    def stop(done: int, _: int | None) -> None:
        if done:
            raise Interrupted

    with pytest.raises(Interrupted):
        fetch(fetch.registry.url(), stop)
    fetch.partial.write_bytes(bytes(fetch.partial.stat().st_size))
    with pytest.raises(Unavailable, match="the digest of blob"):
        fetch(fetch.registry.url())
    assert fetch(fetch.registry.url()) == CONTENT


def test_file_in_a_layer(fetch: Fetch) -> None:
    fetch.registry.manifest([layer_of({PATH: CONTENT}), layer_of({"bin/x": b""})])
    seen: list[tuple[int, int | None]] = []
    url = fetch.registry.url(path=f"/{PATH}")
    assert fetch(url, lambda *progress: seen.append(progress)) == CONTENT
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    requests = len(fetch.ranges)
    assert fetch(url) == CONTENT
    assert len(fetch.ranges) == requests  # the extracted file is known by the image's digest


def test_file_of_another_layer_is_not_kept_when_the_digest_is_wrong(fetch: Fetch) -> None:
    layer, other = layer_of({PATH: CONTENT}), layer_of({PATH: CONTENT[::-1]})
    fetch.registry.manifest([layer])
    fetch.registry.spoil = lambda _, reply: attrs.evolve(reply, body=other[0].ljust(len(layer[0]), b"\0"))
    if len(other[0]) > len(layer[0]):
        fetch.registry.spoil = lambda _, reply: attrs.evolve(reply, body=other[0][: len(layer[0])])
    with pytest.raises((Unavailable, BaseImageError)):
        fetch(fetch.registry.url(path=f"/{PATH}"))
    fetch.registry.spoil = lambda _, reply: reply
    assert fetch(fetch.registry.url(path=f"/{PATH}")) == CONTENT


def test_interrupted_extraction_begins_again(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_file, "SYNC_BYTES", 1)
    fetch.registry.manifest([layer_of({PATH: CONTENT})])

    def stop(done: int, _: int | None) -> None:
        if done == len(CONTENT):  # all of it, before the layer's digest is known
            raise Interrupted

    url = fetch.registry.url(path=f"/{PATH}")
    with pytest.raises(Interrupted):
        fetch(url, stop)
    assert fetch.partial.read_bytes() == CONTENT
    fetch.registry.manifest([layer_of({PATH: CONTENT[::-1]})])
    assert fetch(url) == CONTENT[::-1]


def test_image_of_the_architecture_is_taken(fetch: Fetch) -> None:
    images = {
        name: fetch.registry.manifest([layer_of({"disk/disk.img": name.encode()})], tag=name)
        for name in ("amd64", "arm64")
    }
    fetch.registry.index(images)
    url = fetch.registry.url(path="/disk/*")
    assert fetch(url, architecture="aarch64") == b"arm64"
    assert fetch(url, architecture="x86_64") == b"amd64"
    with pytest.raises(BaseImageError, match="nothing for linux/ppc64le; it has linux/amd64, linux/arm64"):
        fetch(url, architecture="ppc64le")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "is a container image; its URL must name the file in it"),
        ("/coreos/other.iso", "the image has no file /coreos/other.iso"),
        ("/coreos", "'coreos' is not a file"),
    ],
)
def test_what_is_not_there_is_named(fetch: Fetch, path: str, reason: str) -> None:
    directory = tarfile.TarInfo()
    directory.type = tarfile.DIRTYPE
    fetch.registry.manifest([layer_of({"coreos": directory, PATH: CONTENT})])
    url = fetch.registry.url(path=path)
    with pytest.raises(BaseImageError, match=f"{reason}") as caught:
        fetch(url)
    assert caught.value.detail.startswith(f"{url}: ")


def test_busy_registry_says_when_to_come_again(fetch: Fetch) -> None:
    fetch.registry.manifest([(CONTENT, RAW)])
    fetch.registry.spoil = lambda *_: Reply(status=429, headers={"Retry-After": "77"})
    with pytest.raises(Unavailable, match="status 429 to blob") as caught:
        fetch(fetch.registry.url())
    assert caught.value.retry_after_seconds == 77


def test_credentials_of_a_file_are_read_again_when_it_changes(
    fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("image_service.common.files.reloaded.CHECK_SECONDS", 0.0)
    fetch.registry.needs_token = True
    fetch.registry.manifest([(CONTENT, RAW)])
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auths": {fetch.registry.host: auth_entry("robot", "old-password")}}))
    environ = {"INSECURE_REGISTRIES": fetch.registry.host, "REGISTRY_AUTH_FILE": str(file)}
    settings = Settings.from_environment({"DATA_DIR": "/tmp", **environ}, standalone=True)
    client = OriginClient.from_settings(settings.download, registries=settings.registries)
    with pytest.raises(
        Unavailable, match="its token server answered its credentials with status 401"
    ) as caught:
        download_file(client, fetch.registry.url(), fetch.partial, Interruption())
    assert "old-password" not in caught.value.detail
    file.write_text(json.dumps({"auths": {fetch.registry.host: auth_entry()}}))
    download_file(client, fetch.registry.url(), fetch.partial, Interruption())
    assert fetch.partial.read_bytes() == CONTENT
    assert PASSWORD not in repr(client) + repr(settings)


def test_digest_of_sha512(fetch: Fetch) -> None:
    digest = f"sha512:{hashlib.sha512(CONTENT).hexdigest()}"
    layer = {"mediaType": RAW, "digest": digest, "size": len(CONTENT)}
    content = json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": [layer]}).encode()
    fetch.registry.put_manifest(content, OCI_MANIFEST, "latest")
    fetch.registry.origin.serve(f"/v2/{fetch.registry.repository}/blobs/{digest}", Reply(CONTENT))
    assert fetch(fetch.registry.url()) == CONTENT
