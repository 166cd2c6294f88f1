"""The contract of object stores, with a directory and with a real S3 server."""

from __future__ import annotations

import errno
import hashlib
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.objects import s3 as s3_module
from image_service.common.objects.build import open_store
from image_service.common.objects.s3_client import S3Client, S3Options
from image_service.common.objects.s3_links import S3Links
from image_service.core.errors import InvalidRequest, NotFound, StoreFailed, StoreFull
from tests.common.objects.storing import put
from tests.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.common.objects.store import ObjectStorage

PART_BYTES = 5 * 1024 * 1024  # the smallest of S3
KEY = "jobs/0b7a/1/disk.raw"
MIB = 1024 * 1024
NEVER = datetime(1970, 1, 2, tzinfo=UTC)


@attrs.frozen
class Opened:
    """A store, and the directory in which its files are."""

    store: ObjectStorage
    directory: Path

    def files(self) -> list[str]:
        """Return the stored files, finished or not."""
        return sorted(
            str(path.relative_to(self.directory)) for path in self.directory.rglob("*") if path.is_file()
        )


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def options_of(server: S3Server) -> S3Options:
    return S3Options(
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        endpoint_url=server.environment["AWS_ENDPOINT_URL"],
    )


@pytest.fixture(params=["directory", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """An empty store of each kind."""
    if request.param == "directory":
        return Opened(open_store(f"{tmp_path}/store", S3Options()), tmp_path)
    monkeypatch.setattr(s3_module, "PART_BYTES", PART_BYTES)
    server: S3Server = request.getfixturevalue("s3_server")
    prefix = f"prefix/{tmp_path.name}"
    return Opened(open_store(f"s3://{BUCKET}/{prefix}", options_of(server)), server.directory)


class Broken:
    """Content that fails after a while."""

    def __init__(self, good_bytes: int) -> None:
        self._left = good_bytes

    def read(self, size: int, /) -> bytes:
        """Return zeros, then raise."""
        if not self._left:
            raise ConnectionError("the client has gone")
        taken = min(size, self._left)
        self._left -= taken
        return bytes(taken)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, 2 * PART_BYTES + 7])
def test_object_is_read_as_it_was_stored(opened: Opened, size: int) -> None:
    content = os.urandom(size)
    stored = put(opened.store, KEY, BytesIO(content), size)
    assert (stored.key, stored.size) == (KEY, size)
    assert stored.sha256 == hashlib.sha256(content).hexdigest()
    assert opened.store.read_at(KEY, 0, size + 10) == content
    middle = size // 2
    assert opened.store.read_at(KEY, middle, 3) == content[middle : middle + 3]
    assert opened.store.read_at(KEY, size, 10) == b""
    assert opened.store.read_at(KEY, size + 5, 10) == b""
    assert opened.store.read_at(KEY, 0, 0) == b""


def test_content_is_stored_from_its_position_on(opened: Opened) -> None:
    content = BytesIO(b"head and body")
    content.seek(5)
    put(opened.store, KEY, content)
    assert opened.store.read_at(KEY, 0, 100) == b"and body"


def test_object_is_replaced_and_deleted(opened: Opened) -> None:
    put(opened.store, KEY, BytesIO(b"old"))
    put(opened.store, KEY, BytesIO(b"new"))
    assert opened.store.read_at(KEY, 0, 10) == b"new"
    opened.store.delete(KEY)
    opened.store.delete(KEY)
    with pytest.raises(NotFound, match=KEY):
        opened.store.read_at(KEY, 0, 10)


@pytest.mark.parametrize("good_bytes", [0, 100, PART_BYTES + 100])
def test_content_that_fails_leaves_nothing(opened: Opened, good_bytes: int) -> None:
    before = opened.files()
    with pytest.raises(ConnectionError):
        put(opened.store, KEY, Broken(good_bytes))
    with pytest.raises(NotFound):
        opened.store.read_at(KEY, 0, 1)
    assert opened.files() == before


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/.b", "a/../b", "a b", "a\n", "ä"])
def test_text_that_is_no_key_is_refused(opened: Opened, key: str) -> None:
    for call in (
        lambda: put(opened.store, key, BytesIO()),
        lambda: opened.store.read_at(key, 0, 1),
        lambda: opened.store.delete(key),
    ):
        with pytest.raises(ValueError, match="is not a key"):
            call()


# S3 has no directories. The server of the tests has, and refuses an object whose directory is being removed.
@pytest.mark.parametrize("opened", ["directory"], indirect=True)
def test_objects_beside_each_other_are_stored_and_deleted_at_once(opened: Opened) -> None:
    def store_and_delete(number: int) -> None:
        key = f"jobs/{number % 2}/{number}"
        put(opened.store, key, BytesIO(b"x"))
        assert opened.store.read_at(key, 0, 1) == b"x"
        opened.store.delete(key)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(store_and_delete, range(40)))


def test_incomplete_objects_of_a_killed_process_are_removed(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opened.files()
    # A process that is killed neither removes its file nor aborts its upload.
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", lambda *_, **__: None)
        patch.setattr(S3Client, "abort_upload", lambda *_: None)
        with pytest.raises(ConnectionError):
            put(opened.store, KEY, Broken(PART_BYTES + 1))
    left = opened.files()
    assert left != before
    opened.store.remove_unfinished(NEVER)
    assert opened.files() == left
    opened.store.remove_unfinished(datetime.now(UTC) + timedelta(minutes=1))
    assert opened.files() == before


def test_unfinished_files_of_no_directory_are_none(tmp_path: Path) -> None:
    open_store(str(tmp_path / "absent"), S3Options()).remove_unfinished(NEVER)


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}/store", S3Options())
    put(store, KEY, BytesIO(b"x"))
    (tmp_path / "file").touch(0o644)
    store.link_file(f"{KEY}.linked", tmp_path / "file", "")
    for path in (tmp_path / "store", tmp_path / "store" / KEY, tmp_path / "store" / f"{KEY}.linked"):
        assert path.stat().st_mode & 0o077 == 0


def test_link_in_the_place_of_an_object_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(StoreFailed):
        open_store(str(tmp_path), S3Options()).read_at("link", 0, 10)


def test_full_directory_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fail)
    store = open_store(str(tmp_path), S3Options())
    with pytest.raises(StoreFull, match="No space left"):
        put(store, KEY, BytesIO(b"x"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_directory_leaves_a_reserve_free(tmp_path: Path) -> None:
    reserved = open_store(str(tmp_path), S3Options(), 2**62)
    with pytest.raises(StoreFull, match="STORE_RESERVE_BYTES"):
        put(reserved, KEY, BytesIO(b"x"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    put(reserved, KEY, BytesIO(bytes(100_000)))  # takes nothing


@pytest.mark.parametrize(
    "content",
    [
        bytes(5 * MIB),
        bytes(3 * MIB) + b"end",
        b"begin" + bytes(3 * MIB),
        b"".join(bytes(MIB) + b"x" * 70_000 for _ in range(3)) + bytes(777),
    ],
    ids=["zeros", "end", "begin", "mixed"],
)
def test_zeros_are_holes_in_a_directory(tmp_path: Path, content: bytes) -> None:
    store = open_store(str(tmp_path), S3Options())
    stored = put(store, KEY, BytesIO(content))
    assert (stored.size, stored.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert store.read_at(KEY, 0, len(content) + 1) == content
    assert stored.kept_bytes == (tmp_path / KEY).stat().st_blocks * 512
    assert stored.kept_bytes <= len(content.replace(b"\0", b"")) + 6 * 128 * 1024


def test_unavailable_server_is_an_error(s3_server: S3Server) -> None:
    options = attrs.evolve(options_of(s3_server), endpoint_url="http://127.0.0.1:1", attempts=1)
    store = open_store(f"s3://{BUCKET}", options)
    for call in (
        lambda: put(store, KEY, BytesIO()),
        lambda: store.delete(KEY),
        lambda: store.read_at(KEY, 0, 1),
    ):
        with pytest.raises(StoreFailed, match=r": http://127\.0\.0\.1:1: Connection refused"):
            call()


def test_refused_credentials_are_an_error_without_them(s3_server: S3Server) -> None:
    options = attrs.evolve(options_of(s3_server), secret_access_key="wrong-secret")
    with pytest.raises(StoreFailed, match="SignatureDoesNotMatch") as caught:
        put(open_store(f"s3://{BUCKET}", options), KEY, BytesIO(b"x"))
    assert ACCESS_KEY not in str(caught.value)


def test_link_is_signed_unless_its_object_is_public(s3_server: S3Server) -> None:
    put(open_store(f"s3://{BUCKET}", options_of(s3_server)), "uploads/x.vmdk", BytesIO(b"disk"))
    links = S3Links(options_of(s3_server))
    location = f"s3://{BUCKET}/uploads/x.vmdk"
    with urllib.request.urlopen(links.url_of(location)) as answer:  # noqa: S310 - a URL of the test's server
        assert answer.read() == b"disk"
    assert "eu-north-1" in links.url_of(location, "eu-north-1")
    public = links.url_of(location, is_public=True)
    assert public == f"{s3_server.environment['AWS_ENDPOINT_URL']}/{BUCKET}/uploads/x.vmdk"


def test_link_without_credentials_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StoreFailed, match=": no credentials; AWS_ACCESS_KEY_ID"):
        S3Links(S3Options()).url_of("s3://bucket/key")


@pytest.mark.parametrize("size", [0, 1, PART_BYTES + 7])
def test_linked_file_is_an_object_and_its_path_may_go(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    file = tmp_path / "file"
    file.write_bytes(content)
    store = open_store(f"{tmp_path}/store", S3Options())
    for _ in range(2):
        stored = store.link_file(KEY, file, "of the caller")
        assert stored is not None
        assert (stored.key, stored.size, stored.sha256) == (KEY, size, "of the caller")
    assert (tmp_path / "store" / KEY).samefile(file)
    file.unlink()
    assert store.read_at(KEY, 0, size + 10) == content
    assert not list((tmp_path / "store" / ".unfinished").iterdir())


def test_s3_links_no_file(s3_server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    store = open_store(f"s3://{BUCKET}/{tmp_path.name}", options_of(s3_server))
    assert store.link_file(KEY, tmp_path / "file", "") is None


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.ENOSYS])
def test_file_that_cannot_be_linked_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    file = tmp_path / "file"
    file.write_bytes(b"content")
    assert open_store(f"{tmp_path}/store", S3Options()).link_file(KEY, file, "") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_linked_file_keeps_its_holes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as sparse:
        sparse.write(b"x" * 4096)
        sparse.truncate(64 * MIB)
    stored = open_store(f"{tmp_path}/store", S3Options()).link_file(KEY, file, "")
    assert stored is not None
    assert stored.size == 64 * MIB
    assert stored.kept_bytes < MIB


def test_directory_without_room_links_no_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    with pytest.raises(StoreFull, match="STORE_RESERVE_BYTES"):
        open_store(f"{tmp_path}/store", S3Options(), 2**62).link_file(KEY, file, "")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


@pytest.mark.parametrize("kind", ["nothing", "link", "pipe"])
def test_only_regular_files_are_linked(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "path", tmp_path / "other"
    other.touch(0o644)
    if kind == "link":
        path.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(InvalidRequest, match=f"{path}"):
        open_store(f"{tmp_path}/store", S3Options()).link_file(KEY, path, "")
    assert not list((tmp_path / "store" / ".unfinished").iterdir())
    assert other.stat().st_mode & 0o777 == 0o644
