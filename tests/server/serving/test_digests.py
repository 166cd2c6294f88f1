from __future__ import annotations

import os
import shutil
import subprocess
import tracemalloc
from base64 import b64decode
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from image_service.common.concurrency.process_parts import run_at_low_priority
from image_service.common.files.local_file import LocalFile
from image_service.core.errors import BaseImageError, ImageServiceError, NotFound, Unavailable
from image_service.core.extents import Extent, ExtentMap, FileExtent, Literal, Zeros
from image_service.core.images.boot_image import BootImage
from image_service.server.serving import digests
from image_service.server.serving.digests import (
    BLOCK_BYTES,
    MAX_WAITING,
    RETRY_AFTER_SECONDS,
    TIMEOUT_SECONDS,
    Digests,
    checksum_line,
    repr_digest,
    sha256_of_extents,
)
from tests.common.files.partly_absent import PartlyAbsent
from tests.core.images.building import base_file, contents, maps_over
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

T = TypeVar("T")

ENDLESS = Zeros(2**60)
"""What no test lives to see hashed: only an interruption ends it."""


@attrs.define(eq=False)
class HeldThread:
    """A thread that works when the test says so."""

    waiting: list[tuple[Callable[[], bytes], Deferred[bytes]]] = attrs.field(factory=list)
    runs: int = 0

    def run(self, work: Callable[[], bytes]) -> Deferred[bytes]:
        """Take work."""
        done: Deferred[bytes] = Deferred()
        self.waiting.append((work, done))
        return done

    def work(self) -> None:
        """Do what was taken until now, and tell the result."""
        (work, done), *self.waiting = self.waiting
        self.runs += 1
        try:
            done.callback(work())
        except ImageServiceError as error:
            done.errback(error)


@attrs.define(eq=False)
class World:
    """Digests, and what they are given."""

    clock: Clock = attrs.field(factory=Clock)
    thread: HeldThread = attrs.field(factory=HeldThread)
    digests: Digests = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.digests = Digests(self.clock, self.thread.run)

    def ask(self, image: BootImage) -> list[bytes | BaseException]:
        """Where the digest or exception will be."""
        return result_of(self.digests.get(image))

    def stop(self) -> list[BaseException | None]:
        """Where the end will be told."""
        return result_of(Deferred.fromCoroutine(self.digests.stop()))


@pytest.fixture
def world() -> World:
    return World()


def result_of(asked: Deferred[T]) -> list[T | BaseException]:
    found: list[T | BaseException] = []
    asked.addCallbacks(found.append, lambda failure: found.append(failure.value))
    return found


def image_of(*extents: Extent, etag: str = '"one"') -> BootImage:
    return BootImage(ExtentMap(extents), etag, None, "discovery.iso")


def numbered(number: int) -> BootImage:
    return image_of(Literal(b"%d" % number), etag=f'"{number}"')


def digest_of(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def never_stop() -> None:
    """Let the hashing continue, always."""


# The bytes.


@given(st.data(), contents, st.integers(1, 100))
def test_digest_of_extents_is_that_of_the_bytes_sent(data: st.DataObject, content: bytes, piece: int) -> None:
    with base_file(content) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "BLOCK_BYTES", piece)
        extents, rendered = data.draw(maps_over(file, content))
        assert sha256_of_extents(extents.extents, never_stop) == sha256(rendered).digest()


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_digest_of_extents_of_any_number_of_blocks(size: int) -> None:
    content = os.urandom(size)
    with base_file(content) as file:
        extents = (FileExtent(file, 0, size), Literal(content), Zeros(size), Literal(b"end"))
        assert (
            sha256_of_extents(extents, never_stop)
            == sha256(content + content + bytes(size) + b"end").digest()
        )


def test_digest_reads_beyond_4_gib() -> None:
    with base_file(b"") as file:
        os.pwrite(file.descriptor, b"far away", 2**33)
        assert sha256_of_extents([FileExtent(file, 2**33 + 4, 4)], never_stop) == sha256(b"away").digest()


def test_digest_continues_after_a_partial_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, length, at: pread(file, min(length, 7), at))
    with base_file(bytes(range(100))) as file:
        assert (
            sha256_of_extents([FileExtent(file, 5, 90)], never_stop) == sha256(bytes(range(5, 95))).digest()
        )


def test_digest_of_large_extents_needs_little_memory() -> None:
    size = 64 * BLOCK_BYTES
    with base_file(b"") as file:
        os.truncate(file.descriptor, size)
        tracemalloc.start()
        try:
            digest = sha256_of_extents([Zeros(size), FileExtent(file, 0, size)], never_stop)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 4 * BLOCK_BYTES
    assert digest == sha256(bytes(2 * size)).digest()


@pytest.mark.parametrize("kind", ["file", "literal", "zeros"])
def test_check_is_called_before_each_block(kind: str) -> None:
    size = 5 * BLOCK_BYTES
    asked: list[None] = []
    with base_file(bytes(size)) as file:
        extents: dict[str, Extent] = {
            "file": FileExtent(file, 0, size),
            "literal": Literal(bytes(size)),
            "zeros": Zeros(size),
        }
        sha256_of_extents([extents[kind]], lambda: asked.append(None))
    assert len(asked) == 5


# Files that fail.


@pytest.mark.parametrize("left", [0, 1000, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_truncated_file_is_an_error_with_its_offset(left: int) -> None:
    with base_file(bytes(2 * BLOCK_BYTES)) as file:
        os.truncate(file.descriptor, left)
        with pytest.raises(BaseImageError, match=rf"base\.iso ends .* offset {left};"):
            sha256_of_extents([FileExtent(file, 0, 2 * BLOCK_BYTES)], never_stop)


def test_disk_error_is_an_error_with_its_offset(tmp_path: Path) -> None:
    """A directory stands for a broken disk."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        broken = LocalFile(descriptor, 100, "/data/rhcos.iso")
        with pytest.raises(BaseImageError, match=r"^rhcos\.iso cannot be read at offset 7: Is a directory"):
            sha256_of_extents([FileExtent(broken, 7, 10)], never_stop)
    finally:
        os.close(descriptor)


def test_failure_is_not_cached(world: World) -> None:
    with base_file(b"") as file:
        image = image_of(FileExtent(file, 0, 4))
        asked = world.ask(image)
        world.thread.work()
        assert isinstance(asked[0], BaseImageError)
        assert world.digests.get_cached_digest('"one"') is None
        os.pwrite(file.descriptor, b"back", 0)
        again = world.ask(image)
        world.thread.work()
        assert again == [sha256(b"back").digest()]


# Who asks, and when.


def test_cached_digest_is_returned_without_hashing(world: World) -> None:
    image = image_of(Literal(b"data"))
    assert world.digests.get_cached_digest(image.etag) is None
    asked = world.ask(image)
    assert asked == []
    world.thread.work()
    assert asked == [sha256(b"data").digest()]
    assert world.digests.get_cached_digest(image.etag) == sha256(b"data").digest()
    assert world.ask(image) == asked
    assert world.thread.waiting == []


def test_requests_for_one_etag_share_one_computation(world: World) -> None:
    asked = [world.ask(image_of(Literal(b"data"))) for _ in range(100)]
    world.thread.work()
    assert asked == [[sha256(b"data").digest()]] * 100
    assert world.thread.waiting == []


def test_images_are_hashed_one_at_a_time_in_order(world: World) -> None:
    asked = [world.ask(numbered(number)) for number in range(3)]
    for done in range(3):
        assert [bool(result) for result in asked] == [number < done for number in range(3)]
        assert len(world.thread.waiting) == 1
        world.thread.work()
    assert asked == [[digest_of(number)] for number in range(3)]


def test_failure_does_not_stop_the_next_computation(world: World) -> None:
    with base_file(b"") as file:
        failing = world.ask(image_of(FileExtent(file, 0, 1)))
        waiting = world.ask(numbered(2))
        world.thread.work()
        world.thread.work()
    assert isinstance(failing[0], BaseImageError)
    assert waiting == [digest_of(2)]


def test_full_queue_refuses_with_retry_after(world: World) -> None:
    asked = [world.ask(numbered(number)) for number in range(1 + MAX_WAITING)]
    (refused,) = world.ask(numbered(99))
    assert isinstance(refused, Unavailable)
    assert refused.retry_after_seconds == RETRY_AFTER_SECONDS
    assert world.ask(numbered(MAX_WAITING)) == [], "who asks for what is in the queue waits with it"
    for _ in asked:
        world.thread.work()
    assert asked == [[digest_of(number)] for number in range(1 + MAX_WAITING)]
    again = world.ask(numbered(99))
    world.thread.work()
    assert again == [digest_of(99)]


def test_timeout_is_unavailable_and_the_digest_is_found_later(world: World) -> None:
    hashing, waiting = world.ask(numbered(1)), world.ask(numbered(2))
    world.clock.advance(TIMEOUT_SECONDS - 0.01)
    late = world.ask(numbered(1))
    assert (hashing, waiting, late) == ([], [], [])
    world.clock.advance(0.01)
    for result in (hashing, waiting):
        (error,) = result
        assert isinstance(error, Unavailable)
        assert f"{TIMEOUT_SECONDS:g} s" in error.detail
        assert error.retry_after_seconds == RETRY_AFTER_SECONDS
    world.thread.work()
    world.thread.work()
    assert late == [digest_of(1)]
    assert (world.ask(numbered(1)), world.ask(numbered(2))) == ([digest_of(1)], [digest_of(2)])
    assert world.thread.runs == 2


def test_timeout_can_be_set(world: World) -> None:
    patient = result_of(Digests(world.clock, world.thread.run, 60).get(numbered(1)))
    world.clock.advance(59)
    assert patient == []
    world.clock.advance(1)
    assert isinstance(patient[0], Unavailable)


def test_canceled_request_does_not_cancel_the_computation(world: World) -> None:
    leaving = [world.digests.get(numbered(number)) for number in (1, 1, 2)]
    results = [result_of(asked) for asked in leaving]
    staying = world.ask(numbered(1))
    for asked in leaving:
        asked.cancel()
    assert [type(result[0]) for result in results] == [CancelledError] * 3
    world.thread.work()
    world.thread.work()
    assert staying == [digest_of(1)]
    assert world.digests.get_cached_digest('"2"') == digest_of(2)


def test_least_recently_used_digest_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MAX_CACHED", 3)
    world = World()
    for number in range(5):
        world.ask(numbered(number))
        world.thread.work()
        world.digests.get_cached_digest('"0"')
    kept = [number for number in range(5) if world.digests.get_cached_digest(f'"{number}"')]
    assert kept == [0, 3, 4]


# The service's end.


def test_stop_waits_for_the_thread_and_reads_no_further(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within the first read of an image, while others wait."""
    reads, stopped = 0, list[list[BaseException | None]]()

    def read(_: int, length: int, __: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 1:
            stopped.append(world.stop())
        assert stopped == [[]], "a file is read although the end was told"
        return bytes(length)

    monkeypatch.setattr(os, "pread", read)
    with base_file(b"") as file:
        extent = FileExtent(file, 0, 5 * BLOCK_BYTES)
        asked = [world.ask(image_of(extent, etag=f'"{number}"')) for number in range(3)]
        world.thread.work()
    assert (reads, stopped) == (1, [[None]])
    assert [type(result) for (result,) in asked] == [Unavailable] * 3
    assert world.thread.waiting == [], "those that waited do not even begin"


def test_stopped_digests_refuse_new_computations(world: World) -> None:
    world.ask(numbered(1))
    world.thread.work()
    assert world.stop() == [None]
    (refused,) = world.ask(numbered(2))
    assert isinstance(refused, Unavailable)
    assert world.thread.waiting == []
    assert world.ask(numbered(1)) == [digest_of(1)]
    assert world.stop() == [None], "it is over, however often it is asked for"


# Real threads.


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    threads = ThreadPool(0, 1, "digest")
    threads.start()
    yield threads
    threads.stop()


def in_pool(reactor: EPollReactor, pool: ThreadPool) -> Digests:
    return Digests(reactor, lambda work: deferToThreadPool(reactor, pool, run_at_low_priority, work), 60)


@ensure_deferred
async def test_digest_is_computed_in_a_thread(reactor: EPollReactor, pool: ThreadPool) -> None:
    content = os.urandom(3 * BLOCK_BYTES)
    taken = in_pool(reactor, pool)
    with base_file(content) as file:
        digest = await taken.get(image_of(Literal(b"before"), FileExtent(file, 0, len(content))))
        await taken.stop()
    assert digest == sha256(b"before" + content).digest()


@ensure_deferred
async def test_stop_interrupts_the_thread(reactor: EPollReactor, pool: ThreadPool) -> None:
    taken = in_pool(reactor, pool)
    asked = taken.get(image_of(ENDLESS))
    stopped = Deferred.fromCoroutine(taken.stop())
    with pytest.raises(Unavailable, match="shutting down"):
        await asked
    await stopped


# Renderings.


@given(st.binary(min_size=32, max_size=32))
def test_repr_digest_is_a_dictionary_of_one_byte_sequence(digest: bytes) -> None:
    name, _, value = repr_digest(digest).partition("=")
    assert (name, value[0], value[-1]) == ("sha-256", ":", ":")
    assert b64decode(value[1:-1], validate=True) == digest


def test_repr_digest_of_the_example_of_rfc_9530() -> None:
    digest = sha256(b'{"hello": "world"}\n').digest()  # appendix A
    assert repr_digest(digest) == "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"


def test_checksum_line_has_digest_and_file_name() -> None:
    line = checksum_line(sha256(b"data").digest(), "a discovery.iso")
    assert line == b"%b  a discovery.iso\n" % sha256(b"data").hexdigest().encode()


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum of GNU coreutils")
@pytest.mark.parametrize(("content", "status"), [(b"data", 0), (b"date", 1)])
def test_sha256sum_accepts_the_checksum_line(tmp_path: Path, content: bytes, status: int) -> None:
    (tmp_path / "discovery.iso").write_bytes(content)
    line = checksum_line(sha256(b"data").digest(), "discovery.iso")
    command = ["sha256sum", "--check", "--strict", "--status", "-"]
    assert subprocess.run(command, cwd=tmp_path, input=line, check=False).returncode == status


def test_sha256_of_a_partly_absent_file_reads_no_holes(tmp_path: Path) -> None:
    content = os.urandom(300_000)
    file = PartlyAbsent(tmp_path / "base.iso", content).file
    assert (
        sha256_of_extents([FileExtent(file, 100, 200_000)], lambda: None)
        == sha256(content[100:200_100]).digest()
    )
    file.close()


@ensure_deferred
async def test_remote_image_has_no_digest_before_all_of_it_is_local(
    reactor: EPollReactor, tmp_path: Path
) -> None:
    content = bytes(range(1, 256)) * 1000
    remote = PartlyAbsent(tmp_path / "remote", content)
    parts = (Literal(b"config"), FileExtent(remote.file, 10, 200_000))
    image = BootImage(ExtentMap(parts), '"remote"', None, "remote.iso")

    def hash_here(work: Callable[[], bytes]) -> Deferred[bytes]:
        return succeed(work())

    calculated = Digests(reactor, hash_here)
    with pytest.raises(NotFound, match="not all of it is on local disk"):
        await calculated.get(image)
    await remote.prefetch(remote.file, 10, 200_000)
    assert await calculated.get(image) == sha256(b"config" + content[10:200_010]).digest()
    await calculated.stop()
    remote.file.close()
