from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import BaseImageError, Unavailable
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.lifecycle.signature import KeyRing
from image_service.server.catalog.storage.data_dir import LOCKS, MANIFEST, DataDir
from image_service.server.catalog.storage.manifest import read_manifest
from image_service.settings.base_images import DownloadSettings
from image_service.settings.os_images import OsImage
from tests.acceptance.clients import needs_client
from tests.core.formats.filesystems.iso_builder import build_live_iso, build_other_iso, live_files
from tests.server.catalog.origin import Origin, Reply, Resource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage

ISO = build_live_iso()
SHA256 = hashlib.sha256(ISO).hexdigest()


@attrs.frozen
class Directory:
    """A directory with an origin.

    Args:
        path: the directory.
        origin: where images come from.
    """

    path: Path
    origin: Origin

    def fetcher(self, keys: KeyRing | None = None) -> ImageFetcher:
        """Return that of another process."""
        fetch = partial(download_file, OriginClient.from_settings(DownloadSettings()))
        return ImageFetcher(DataDir(self.path), fetch, keys)

    def entry(self, content: bytes = ISO, sha256: str | None = None) -> OsImage:
        """An image that the origin has."""
        url = self.origin.serve("/a.iso", Resource(content))
        return OsImage("1", "x86_64", "full-iso", ("4.17",), url, sha256)

    def path_of(self, entry: OsImage) -> Path:
        """Return where it is stored."""
        return self.path / entry.file_name

    def names(self) -> set[str]:
        """Return the files other than manifest and locks."""
        return {path.name for path in self.path.iterdir()} - {LOCKS, MANIFEST}


@pytest.fixture
def directory(tmp_path: Path, origin: Origin) -> Directory:
    """An empty directory."""
    (tmp_path / "data").mkdir()
    return Directory(tmp_path / "data", origin)


@contextmanager
def opened(fetcher: ImageFetcher, entry: OsImage) -> Iterator[BaseImage]:
    """Open an image, and close it."""
    base = fetcher.open(entry, Interruption())
    try:
        yield base
    finally:
        base.file.close()


def test_image_is_fetched_verified_and_opened(directory: Directory) -> None:
    entry, fetcher, progress = directory.entry(sha256=SHA256), directory.fetcher(), []
    assert not fetcher.is_complete(entry)
    fetcher.fetch_if_absent(entry, Interruption(), lambda done, total: progress.append((done, total)))
    assert fetcher.is_complete(entry)
    assert (progress[0], progress[-1]) == ((0, len(ISO)), (len(ISO), len(ISO)))
    with opened(fetcher, entry) as base:
        assert base.sha256 == SHA256
    assert directory.names() == {entry.file_name, f"{entry.file_name}.json"}


@pytest.mark.parametrize(
    ("content", "sha256", "reason"),
    [
        (ISO, "ab" * 32, f"its SHA-256 is {SHA256}; it must be {'ab' * 32}"),
        (ISO[: len(ISO) // 2], None, "."),
        (b"please log in", None, "."),
        (build_other_iso(), None, "debian"),
        *(
            (
                build_live_iso({name: data for name, data in live_files().items() if name != missing}),
                None,
                f"is not a full ISO: {missing} is missing",
            )
            for missing in ("images/pxeboot/rootfs.img", "images/pxeboot/vmlinuz")
        ),
    ],
    ids=["digest", "length", "page", "volume", "rootfs", "kernel"],
)
def test_invalid_download_is_set_aside_and_fetched_again(
    directory: Directory, content: bytes, sha256: str | None, reason: str
) -> None:
    entry, fetcher = directory.entry(content, sha256), directory.fetcher()
    fetcher.fetch_if_absent(entry, Interruption())
    with pytest.raises(BaseImageError, match=reason):
        fetcher.open(entry, Interruption())
    assert not directory.path_of(entry).exists()
    assert (directory.path / f"{entry.file_name}.refused").read_bytes() == content
    assert read_manifest(directory.path / MANIFEST)[entry.file_name].refused
    directory.origin.replies["/a.iso"] = [Resource(ISO)]
    fetcher.fetch_if_absent(entry, Interruption())
    with opened(fetcher, attrs.evolve(entry, sha256=SHA256)) as base:
        assert base.sha256 == SHA256


def test_file_of_an_operator_is_used_and_never_set_aside(directory: Directory) -> None:
    entry, fetcher = directory.entry(), directory.fetcher()
    directory.path_of(entry).write_bytes(ISO[:-2048])
    fetcher.fetch_if_absent(entry, Interruption())
    with pytest.raises(BaseImageError):
        fetcher.open(entry, Interruption())
    assert directory.path_of(entry).read_bytes() == ISO[:-2048]
    directory.path_of(entry).write_bytes(ISO)
    with opened(fetcher, entry) as base:
        assert base.sha256 == SHA256
    assert not directory.origin.requests


def test_second_process_uses_the_download_of_the_first(directory: Directory) -> None:
    entry = attrs.evolve(directory.entry())
    directory.origin.replies["/a.iso"] = [Reply(ISO[:9], promised=len(ISO), hold=True), Resource(ISO)]
    first, second = directory.fetcher(), directory.fetcher()
    failed = []

    def fetch() -> None:
        try:
            first.fetch_if_absent(entry, Interruption())
        except Unavailable as error:
            failed.append(error)
        first.fetch_if_absent(entry, Interruption())

    def fetch_second() -> None:
        second.fetch_if_absent(entry, Interruption())

    threads = [threading.Thread(target=fetch), threading.Thread(target=fetch_second)]
    threads[0].start()
    directory.origin.holding.wait()
    threads[1].start()
    directory.origin.released.set()
    for thread in threads:
        thread.join()
    assert len(failed) == 1
    assert len(directory.origin.requests) == 2  # what was cut, and the rest or all of it, by one of the two
    with opened(second, entry) as base:
        assert base.sha256 == SHA256


def test_download_without_space_is_refused_before_it_starts(directory: Directory) -> None:
    entry = directory.entry()
    fetcher = attrs.evolve(directory.fetcher(), data_dir=DataDir(directory.path, max_bytes=len(ISO)))
    with pytest.raises(Unavailable, match=f"not enough disk space: {len(ISO)} bytes needed"):
        fetcher.fetch_if_absent(entry, Interruption())
    assert sum(path.stat().st_size for path in directory.path.iterdir()) < 4096


# Corruption.


def corrupt(path: Path, offset: int) -> None:
    """Change a bit like a failing disk: the times stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def large() -> bytes:
    return build_live_iso({**live_files(), "images/pxeboot/initrd.img": os.urandom(4 * 2**20)})


def test_recheck_finds_corruption_and_sets_the_image_aside(directory: Directory) -> None:
    content = large()
    entry, fetcher = directory.entry(content), directory.fetcher()
    fetcher.fetch_if_absent(entry, Interruption())
    with opened(fetcher, entry) as base:
        fetcher.recheck(entry, base, Interruption())
    offset = len(content) // 2 + 40_000  # between two samples
    corrupt(directory.path_of(entry), offset)
    with opened(directory.fetcher(), entry) as base:
        assert base.sha256 == hashlib.sha256(content).hexdigest()  # by size, time and sample
        with pytest.raises(BaseImageError, match=r"content changed \(corruption\?\): its SHA-256 was"):
            fetcher.recheck(entry, base, Interruption())
    assert (directory.path / f"{entry.file_name}.refused").exists()
    fetcher.fetch_if_absent(entry, Interruption())
    assert directory.path_of(entry).read_bytes() == content
    with opened(fetcher, entry) as base:
        fetcher.recheck(entry, base, Interruption())


def test_recheck_leaves_a_file_that_was_replaced(directory: Directory) -> None:
    entry, fetcher = directory.entry(), directory.fetcher()
    fetcher.fetch_if_absent(entry, Interruption())
    with opened(fetcher, entry) as base:
        corrupt(directory.path_of(entry), 9)
        fetcher.data_dir.set_aside(entry.file_name, "content changed")
        fetcher.fetch_if_absent(entry, Interruption())
        with pytest.raises(BaseImageError, match="content changed"):
            fetcher.recheck(entry, base, Interruption())
    assert directory.path_of(entry).read_bytes() == ISO


def test_recheck_is_interrupted(directory: Directory) -> None:
    entry, fetcher = directory.entry(), directory.fetcher()
    fetcher.fetch_if_absent(entry, Interruption())
    with opened(fetcher, entry) as base:
        interruption = Interruption()
        interruption.interrupt()
        with pytest.raises(Interrupted):
            fetcher.recheck(entry, base, interruption)
    assert directory.path_of(entry).exists()


# Signatures.


@pytest.fixture(scope="module")
def gpg_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A gpg home with a key."""
    needs_client("gpg")
    home: Path = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    gpg(home, "--quick-gen-key", "one@example.com", "ed25519", "sign", "never")
    yield home
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True)


def gpg(home: Path, *arguments: str, content: bytes = b"") -> bytes:
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback"]
    command += ["--passphrase", "", *arguments]
    return subprocess.run(command, input=content, check=True, stdout=-1).stdout


def signed(gpg_home: Path) -> tuple[KeyRing, bytes]:
    return KeyRing(gpg(gpg_home, "--export")), gpg(gpg_home, "--detach-sign", content=ISO)


def test_signature_is_fetched_and_verified_once(
    directory: Directory, gpg_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, signature = signed(gpg_home)
    entry = attrs.evolve(directory.entry(), url=directory.origin.url("/a.iso?token=1"))
    directory.origin.serve("/a.iso.sig", Resource(signature))
    fetcher = directory.fetcher(keys)
    fetcher.fetch_if_absent(entry, Interruption())
    assert [request.target for request in directory.origin.requests] == [
        "/a.iso?token=1",
        "/a.iso.sig?token=1",
    ]
    for _ in range(2):
        assert fetcher.is_complete(entry)
        with opened(fetcher, entry) as base:
            assert base.sha256 == SHA256
        monkeypatch.setenv("PATH", "/nowhere")
    assert (directory.path / f"{entry.file_name}.sig").read_bytes() == signature


@pytest.mark.parametrize("wrong", ["signature", "image"])
def test_image_with_a_bad_signature_is_refused_and_both_are_fetched_again(
    directory: Directory, gpg_home: Path, wrong: str
) -> None:
    keys, signature = signed(gpg_home)
    entry = directory.entry(build_live_iso(created=None) if wrong == "image" else ISO)
    directory.origin.serve("/a.iso.sig", Resource(b"nonsense" if wrong == "signature" else signature))
    fetcher = directory.fetcher(keys)
    fetcher.fetch_if_absent(entry, Interruption())
    with pytest.raises(BaseImageError, match="its OpenPGP signature is not valid"):
        fetcher.open(entry, Interruption())
    assert not fetcher.is_complete(entry)
    directory.origin.replies["/a.iso"] = [Resource(ISO)]
    directory.origin.replies["/a.iso.sig"] = [Resource(signature)]
    fetcher.fetch_if_absent(entry, Interruption())
    with opened(fetcher, entry) as base:
        assert base.sha256 == SHA256


@pytest.mark.parametrize(
    "reply", [Reply(status=404), Reply(bytes(100_000)), Reply(bytes(100_000), promised=-1)]
)
def test_image_without_a_signature_is_unavailable(directory: Directory, gpg_home: Path, reply: Reply) -> None:
    keys, _ = signed(gpg_home)
    entry, fetcher = directory.entry(), directory.fetcher(keys)
    directory.origin.serve("/a.iso.sig", reply)
    with pytest.raises(Unavailable, match=r"answered with status 404|more than 65536 bytes"):
        fetcher.fetch_if_absent(entry, Interruption())
    assert not fetcher.is_complete(entry)
    with pytest.raises(
        BaseImageError, match=r"has no OpenPGP signature .*\.iso\.sig, but SIGNING_KEYS is set"
    ):
        fetcher.open(entry, Interruption())


def test_signature_of_a_local_file_is_beside_it(directory: Directory, gpg_home: Path, tmp_path: Path) -> None:
    keys, signature = signed(gpg_home)
    (tmp_path / "local.iso").write_bytes(ISO)
    entry = OsImage("1", "x86_64", "full-iso", ("4.17",), (tmp_path / "local.iso").as_uri())
    fetcher = directory.fetcher(keys)
    with pytest.raises(BaseImageError, match=r"has no OpenPGP signature local\.iso\.sig"):
        fetcher.open(entry, Interruption())
    (tmp_path / "local.iso.sig").write_bytes(signature)
    with opened(fetcher, entry) as base:
        assert base.sha256 == SHA256
    assert (tmp_path / "local.iso").exists()
