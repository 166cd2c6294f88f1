from __future__ import annotations

import os
import shutil
import subprocess
import threading
import tracemalloc
from base64 import b64decode
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from image_service.errors import BaseImageError, ImageServiceError, Unavailable
from image_service.files.base_file import BaseFile
from image_service.images.boot_image import BootImage
from image_service.images.extents import Extent, ExtentMap, FileExtent, Literal, Zeros
from image_service.serving import digests
from image_service.serving.digests import (
    MAX_WAITING,
    NICENESS,
    PATIENCE_SECONDS,
    PIECE_BYTES,
    RETRY_AFTER_SECONDS,
    Digests,
    checksum_line,
    in_background,
    repr_digest,
    sha256_of,
)
from tests.files.partly_absent import PartlyAbsent
from tests.images.building import base_file, contents, maps_over
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
        """Do what was taken until now, and tell the outcome."""
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
        return outcome_of(self.digests.get(image))

    def stop(self) -> list[BaseException | None]:
        """Where the end will be told."""
        return outcome_of(Deferred.fromCoroutine(self.digests.stop()))


@pytest.fixture
def world() -> World:
    return World()


def outcome_of(asked: Deferred[T]) -> list[T | BaseException]:
    found: list[T | BaseException] = []
    asked.addCallbacks(found.append, lambda failure: found.append(failure.value))
    return found


def image_of(*extents: Extent, etag: str = '"one"') -> BootImage:
    return BootImage(ExtentMap(extents), etag, None, "discovery.iso")


def numbered(number: int) -> BootImage:
    return image_of(Literal(b"%d" % number), etag=f'"{number}"')


def digest_of(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def go_on() -> None:
    """Let the hashing go on, always."""


# The bytes.


@given(st.data(), contents, st.integers(1, 100))
def test_is_that_of_the_bytes_that_a_client_gets(data: st.DataObject, content: bytes, piece: int) -> None:
    with base_file(content) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "PIECE_BYTES", piece)
        extents, rendered = data.draw(maps_over(file, content))
        assert sha256_of(extents.extents, go_on) == sha256(rendered).digest()


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_takes_extents_of_any_number_of_pieces(size: int) -> None:
    content = os.urandom(size)
    with base_file(content) as file:
        extents = (FileExtent(file, 0, size), Literal(content), Zeros(size), Literal(b"end"))
        assert sha256_of(extents, go_on) == sha256(content + content + bytes(size) + b"end").digest()


def test_reads_beyond_4_gib() -> None:
    with base_file(b"") as file:
        os.pwrite(file.descriptor, b"far away", 2**33)
        assert sha256_of([FileExtent(file, 2**33 + 4, 4)], go_on) == sha256(b"away").digest()


def test_reads_on_where_a_read_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, length, at: pread(file, min(length, 7), at))
    with base_file(bytes(range(100))) as file:
        assert sha256_of([FileExtent(file, 5, 90)], go_on) == sha256(bytes(range(5, 95))).digest()


def test_needs_no_memory_for_large_extents() -> None:
    size = 64 * PIECE_BYTES
    with base_file(b"") as file:
        os.truncate(file.descriptor, size)
        tracemalloc.start()
        try:
            digest = sha256_of([Zeros(size), FileExtent(file, 0, size)], go_on)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 4 * PIECE_BYTES
    assert digest == sha256(bytes(2 * size)).digest()


@pytest.mark.parametrize("kind", ["file", "literal", "zeros"])
def test_asks_before_each_piece_whether_to_go_on(kind: str) -> None:
    size = 5 * PIECE_BYTES
    asked: list[None] = []
    with base_file(bytes(size)) as file:
        extents: dict[str, Extent] = {
            "file": FileExtent(file, 0, size),
            "literal": Literal(bytes(size)),
            "zeros": Zeros(size),
        }
        sha256_of([extents[kind]], lambda: asked.append(None))
    assert len(asked) == 5


# Files that fail.


@pytest.mark.parametrize("left", [0, 1000, PIECE_BYTES, PIECE_BYTES + 1])
def test_a_file_that_became_short_is_told(left: int) -> None:
    with base_file(bytes(2 * PIECE_BYTES)) as file:
        os.truncate(file.descriptor, left)
        with pytest.raises(BaseImageError, match=rf"base\.iso ends .* offset {left};"):
            sha256_of([FileExtent(file, 0, 2 * PIECE_BYTES)], go_on)


def test_a_fault_of_the_disk_is_told(tmp_path: Path) -> None:
    """A directory stands for a broken disk."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        broken = BaseFile(descriptor, 100, "/data/rhcos.iso")
        with pytest.raises(BaseImageError, match=r"^rhcos\.iso cannot be read at offset 7: Is a directory"):
            sha256_of([FileExtent(broken, 7, 10)], go_on)
    finally:
        os.close(descriptor)


def test_a_failure_is_not_kept(world: World) -> None:
    with base_file(b"") as file:
        image = image_of(FileExtent(file, 0, 4))
        asked = world.ask(image)
        world.thread.work()
        assert isinstance(asked[0], BaseImageError)
        assert world.digests.known('"one"') is None
        os.pwrite(file.descriptor, b"back", 0)
        again = world.ask(image)
        world.thread.work()
        assert again == [sha256(b"back").digest()]


# Who asks, and when.


def test_what_is_known_is_there_at_once(world: World) -> None:
    image = image_of(Literal(b"data"))
    assert world.digests.known(image.etag) is None
    asked = world.ask(image)
    assert asked == []
    world.thread.work()
    assert asked == [sha256(b"data").digest()]
    assert world.digests.known(image.etag) == sha256(b"data").digest()
    assert world.ask(image) == asked
    assert world.thread.waiting == []


def test_equal_tags_share_one_hashing(world: World) -> None:
    asked = [world.ask(image_of(Literal(b"data"))) for _ in range(100)]
    world.thread.work()
    assert asked == [[sha256(b"data").digest()]] * 100
    assert world.thread.waiting == []


def test_one_image_at_a_time_in_the_order_of_asking(world: World) -> None:
    asked = [world.ask(numbered(number)) for number in range(3)]
    for done in range(3):
        assert [bool(outcome) for outcome in asked] == [number < done for number in range(3)]
        assert len(world.thread.waiting) == 1
        world.thread.work()
    assert asked == [[digest_of(number)] for number in range(3)]


def test_who_fails_lets_the_next_one_go(world: World) -> None:
    with base_file(b"") as file:
        failing = world.ask(image_of(FileExtent(file, 0, 1)))
        waiting = world.ask(numbered(2))
        world.thread.work()
        world.thread.work()
    assert isinstance(failing[0], BaseImageError)
    assert waiting == [digest_of(2)]


def test_the_queue_is_bounded(world: World) -> None:
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


def test_who_waits_too_long_is_told_so_and_finds_the_digest_later(world: World) -> None:
    hashing, waiting = world.ask(numbered(1)), world.ask(numbered(2))
    world.clock.advance(PATIENCE_SECONDS - 0.01)
    late = world.ask(numbered(1))
    assert (hashing, waiting, late) == ([], [], [])
    world.clock.advance(0.01)
    for outcome in (hashing, waiting):
        (error,) = outcome
        assert isinstance(error, Unavailable)
        assert f"{PATIENCE_SECONDS:g} s" in error.detail
        assert error.retry_after_seconds == RETRY_AFTER_SECONDS
    world.thread.work()
    world.thread.work()
    assert late == [digest_of(1)]
    assert (world.ask(numbered(1)), world.ask(numbered(2))) == ([digest_of(1)], [digest_of(2)])
    assert world.thread.runs == 2


def test_patience_can_be_set(world: World) -> None:
    patient = outcome_of(Digests(world.clock, world.thread.run, 60).get(numbered(1)))
    world.clock.advance(59)
    assert patient == []
    world.clock.advance(1)
    assert isinstance(patient[0], Unavailable)


def test_who_leaves_cancels_nothing(world: World) -> None:
    leaving = [world.digests.get(numbered(number)) for number in (1, 1, 2)]
    outcomes = [outcome_of(asked) for asked in leaving]
    staying = world.ask(numbered(1))
    for asked in leaving:
        asked.cancel()
    assert [type(outcome[0]) for outcome in outcomes] == [CancelledError] * 3
    world.thread.work()
    world.thread.work()
    assert staying == [digest_of(1)]
    assert world.digests.known('"2"') == digest_of(2)


def test_the_least_recently_used_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MAX_KEPT", 3)
    world = World()
    for number in range(5):
        world.ask(numbered(number))
        world.thread.work()
        world.digests.known('"0"')
    kept = [number for number in range(5) if world.digests.known(f'"{number}"')]
    assert kept == [0, 3, 4]


# The service's end.


def test_stopping_waits_for_the_thread_and_reads_no_further(
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
        extent = FileExtent(file, 0, 5 * PIECE_BYTES)
        asked = [world.ask(image_of(extent, etag=f'"{number}"')) for number in range(3)]
        world.thread.work()
    assert (reads, stopped) == (1, [[None]])
    assert [type(outcome) for (outcome,) in asked] == [Unavailable] * 3
    assert world.thread.waiting == [], "those that waited do not even begin"


def test_after_the_end_nothing_begins(world: World) -> None:
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
    return Digests(reactor, lambda work: deferToThreadPool(reactor, pool, in_background, work), 60)


@ensure_deferred
async def test_in_a_thread(reactor: EPollReactor, pool: ThreadPool) -> None:
    content = os.urandom(3 * PIECE_BYTES)
    taken = in_pool(reactor, pool)
    with base_file(content) as file:
        digest = await taken.get(image_of(Literal(b"before"), FileExtent(file, 0, len(content))))
        await taken.stop()
    assert digest == sha256(b"before" + content).digest()


@ensure_deferred
async def test_a_thread_is_interrupted(reactor: EPollReactor, pool: ThreadPool) -> None:
    taken = in_pool(reactor, pool)
    asked = taken.get(image_of(ENDLESS))
    stopped = Deferred.fromCoroutine(taken.stop())
    with pytest.raises(Unavailable, match="stops"):
        await asked
    await stopped


@ensure_deferred
async def test_the_thread_gives_way_to_the_reactor(reactor: EPollReactor, pool: ThreadPool) -> None:
    def priority() -> bytes:
        return b"%d" % os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    own = int(priority())
    assert int(await deferToThreadPool(reactor, pool, in_background, priority)) == max(own, NICENESS)
    assert int(priority()) == own


# What is told.


@given(st.binary(min_size=32, max_size=32))
def test_the_field_is_a_dictionary_of_one_byte_sequence(digest: bytes) -> None:
    name, _, value = repr_digest(digest).partition("=")
    assert (name, value[0], value[-1]) == ("sha-256", ":", ":")
    assert b64decode(value[1:-1], validate=True) == digest


def test_the_field_of_the_example_of_rfc_9530() -> None:
    digest = sha256(b'{"hello": "world"}\n').digest()  # appendix A
    assert repr_digest(digest) == "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"


def test_the_line_names_digest_and_file() -> None:
    line = checksum_line(sha256(b"data").digest(), "a discovery.iso")
    assert line == b"%b  a discovery.iso\n" % sha256(b"data").hexdigest().encode()


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum of GNU coreutils")
@pytest.mark.parametrize(("content", "status"), [(b"data", 0), (b"date", 1)])
def test_sha256sum_takes_the_line(tmp_path: Path, content: bytes, status: int) -> None:
    (tmp_path / "discovery.iso").write_bytes(content)
    line = checksum_line(sha256(b"data").digest(), "discovery.iso")
    command = ["sha256sum", "--check", "--strict", "--status", "-"]
    assert subprocess.run(command, cwd=tmp_path, input=line, check=False).returncode == status


def test_sha256_of_a_partly_absent_file_reads_no_holes(tmp_path: Path) -> None:
    content = os.urandom(300_000)
    file = PartlyAbsent(tmp_path / "base.iso", content).file
    assert sha256_of([FileExtent(file, 100, 200_000)], lambda: None) == sha256(content[100:200_100]).digest()
    file.close()
