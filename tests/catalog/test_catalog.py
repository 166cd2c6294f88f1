from __future__ import annotations

import gc
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater

from image_service.catalog.catalog import Catalog
from image_service.catalog.download.downloader import Downloader
from image_service.catalog.download.origin_client import OriginClient
from image_service.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.catalog.lifecycle.lifecycle import RECHECK_AFTER_SECONDS, REFUSED_RETRY_AFTER_SECONDS
from image_service.catalog.lifecycle.status import BaseImageState
from image_service.catalog.options import DOWNLOADS, CatalogOptions
from image_service.catalog.storage.data_dir import LOCKS, MANIFEST, DataDir
from image_service.concurrency.backoff import Backoff
from image_service.errors import BaseImageError, NotFound, Unavailable
from image_service.images.reference import Kind
from image_service.settings.base_images import DownloadSettings
from image_service.settings.os_images import OsImage
from tests.catalog.origin import Origin, Reply
from tests.formats.iso_builder import build_live_iso, live_files
from tests.pytwisted import async_fixture, ensure_deferred

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twisted.internet.epollreactor import EPollReactor

    from image_service.catalog.download.downloader import ReportProgress
    from image_service.concurrency.interruption import Interruption
    from image_service.images.base import BaseImage
    from tests.catalog.lines import Lines
    from tests.conftest import LoggedFailures

ISO = build_live_iso()
SHA256 = hashlib.sha256(ISO).hexdigest()
RETRY_SECONDS = 60.0
NOWHERE = "http://127.0.0.1:1/never-asked.iso"


def entry(
    url: str, version: str = "9.6.1-0", openshift: str = "4.19", image_type: str = "full-iso"
) -> OsImage:
    return OsImage(version, "x86_64", image_type, (openshift,), url)


@attrs.frozen
class Bench:
    """Makes catalogs over one directory, and stops them in the end."""

    reactor: EPollReactor
    clock: Clock
    data_dir: Path
    started: list[Catalog]

    def start(self, *entries: OsImage, **options: Any) -> Catalog:
        client = OriginClient.from_settings(DownloadSettings())
        backoff = Backoff(RETRY_SECONDS, 4 * RETRY_SECONDS, jitter=lambda _, most: most)
        fetcher = ImageFetcher(DataDir(self.data_dir), Downloader(client).download)
        catalog = Catalog(
            self.reactor, self.clock, entries, fetcher, CatalogOptions(backoff=backoff, **options)
        )
        self.started.append(catalog)
        catalog.start()
        return catalog

    def names(self) -> set[str]:
        return {path.name for path in self.data_dir.iterdir()} - {LOCKS, MANIFEST}


@async_fixture
async def bench(reactor: EPollReactor, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(reactor, Clock(), tmp_path / "data", [])
    yield bench
    for catalog in bench.started:
        await catalog.stop()


def write(path: Path, content: bytes = ISO) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def partial_names(image: OsImage) -> set[str]:
    return {f".{image.file_name}.part", f".{image.file_name}.part.json"}


def is_open(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").exists()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# Where an image comes from.


@ensure_deferred
async def test_serves_a_file_in_place(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    path = write(tmp_path / "some where" / "base.iso")
    image = entry(path.as_uri())
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)

    base = catalog.find_base_image("9.6.1-0", "x86_64", Kind.FULL_ISO)

    assert (base.file.path, base.file.size) == (str(path), len(ISO))
    assert os.pread(base.file.descriptor, len(ISO), 0) == ISO
    assert (base.sha256, base.version, base.needs_nmstate) == (SHA256, "9.6.1-0", True)
    assert base.architecture == "x86_64"
    assert not base.disconnected
    assert base.layout.ignition.length == 262144
    assert bench.names() == {f"{image.file_name}.json"}


@ensure_deferred
async def test_adopts_a_file_of_its_name(bench: Bench, lines: Lines) -> None:
    image = entry(NOWHERE)
    write(bench.data_dir / image.file_name)
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)

    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256
    assert "downloading" not in lines.text


@ensure_deferred
async def test_fetches_once(bench: Bench, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO)))
    for _ in range(2):
        catalog = bench.start(image)
        await lines.until(image.file_name, BaseImageState.READY)
        assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256
        await catalog.stop()

    assert (bench.data_dir / image.file_name).read_bytes() == ISO
    assert bench.names() == {image.file_name, f"{image.file_name}.json"}
    assert len(origin.requests) == 1


@ensure_deferred
async def test_tries_a_download_that_broke_again(bench: Bench, lines: Lines, origin: Origin) -> None:
    broken = Reply(ISO[:-1], promised=len(ISO))
    image = entry(origin.serve("/base.iso", broken, Reply(ISO)))
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)

    assert bench.names() == partial_names(image)
    bench.clock.advance(RETRY_SECONDS - 1.5)
    with pytest.raises(Unavailable, match=f"failed: .*sent {len(ISO) - 1} of {len(ISO)} bytes") as refusal:
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    assert refusal.value.retry_after_seconds == 2
    assert len(origin.requests) == 1

    bench.clock.advance(1.5)
    await lines.until(image.file_name, BaseImageState.READY)
    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256


@ensure_deferred
async def test_waits_for_a_file_that_is_not_there_yet(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    image = entry((tmp_path / "late.iso").as_uri())
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    with pytest.raises(Unavailable, match="No such file"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)

    write(tmp_path / "late.iso")
    bench.clock.advance(RETRY_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)


# What is refused.


def customized() -> bytes:
    return build_live_iso({**live_files(), "images/ignition.img": b"\x1f\x8b".ljust(262144, b"\0")})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>not found</html>", "was refused"),
        (ISO[:-2048], "was refused"),
        (build_live_iso(volume_id="debian-12"), "debian-12"),
        (customized(), "customized before"),
    ],
    ids=["not an ISO", "truncated", "not CoreOS", "customized"],
)
@ensure_deferred
async def test_refuses_what_is_no_pristine_live_iso(
    bench: Bench, lines: Lines, tmp_path: Path, content: bytes, reason: str
) -> None:
    before = open_files()
    bad = entry(write(tmp_path / "bad.iso", content).as_uri(), version="1")
    good = entry(write(tmp_path / "good.iso").as_uri(), version="2")
    catalog = bench.start(bad, good)
    await lines.until(bad.file_name, BaseImageState.REFUSED)
    await lines.until(good.file_name, BaseImageState.READY)

    with pytest.raises(BaseImageError, match=reason) as refusal:
        catalog.find_base_image("1", "x86_64", Kind.FULL_ISO)
    assert refusal.value.retry_after_seconds
    assert catalog.find_base_image("2", "x86_64", Kind.FULL_ISO).sha256 == SHA256
    assert catalog.is_ready
    assert [status.state for status in catalog.statuses()] == [BaseImageState.REFUSED, BaseImageState.READY]
    assert [status.retry_at for status in catalog.statuses()] == [None, None]  # stays refused
    assert (tmp_path / "bad.iso").exists()
    assert open_files() == before + 2  # the good one, and the lock of who is there


@ensure_deferred
async def test_overwrites_a_disconnected_iso_that_was_customized(
    bench: Bench, lines: Lines, tmp_path: Path
) -> None:
    path = write(tmp_path / "ove.iso", customized())
    image = entry(path.as_uri(), image_type="disconnected-iso")
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)

    assert catalog.find_base_image("4.19", "x86_64", Kind.DISCONNECTED_ISO).disconnected
    assert "customized before, which will be overwritten" in lines.text


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
@ensure_deferred
async def test_refuses_what_is_no_file(bench: Bench, lines: Lines, tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "thing.iso")
    image = entry((tmp_path / "thing.iso").as_uri())
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.REFUSED)

    with pytest.raises(BaseImageError, match="not a regular file"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)


@ensure_deferred
async def test_sets_aside_what_it_fetched_and_refused(bench: Bench, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", Reply(b"please log in")))
    bench.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)

    assert bench.names() == {f"{image.file_name}.refused"}


@ensure_deferred
async def test_fetches_what_it_refused_again_when_its_origin_had_time_to_be_mended(
    bench: Bench, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(b"please log in"), Reply(ISO)))
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    (status,) = catalog.statuses()
    assert status.retry_at == pytest.approx(bench.clock.seconds() + REFUSED_RETRY_AFTER_SECONDS)
    bench.clock.advance(REFUSED_RETRY_AFTER_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)


@ensure_deferred
async def test_keeps_a_fault_of_its_own_to_one_image(
    reactor: EPollReactor, lines: Lines, tmp_path: Path, logged_failures: LoggedFailures
) -> None:
    def fail(url: str, partial: Path, interruption: Interruption, progress: ReportProgress) -> None:
        raise RuntimeError(url, partial, interruption, progress)

    good = entry(write(tmp_path / "good.iso").as_uri(), version="good")
    bad = entry(NOWHERE, version="bad")
    catalog = Catalog(reactor, Clock(), [bad, good], ImageFetcher(DataDir(tmp_path), fail))
    catalog.start()
    await lines.until(bad.file_name, BaseImageState.REFUSED)
    await lines.until(good.file_name, BaseImageState.READY)

    assert len(logged_failures.flush(RuntimeError)) == 1
    await catalog.stop()


# How the digest is remembered.


async def digest_of(bench: Bench, lines: Lines, image: OsImage) -> str:
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    digest = catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256
    await catalog.stop()
    return digest


@ensure_deferred
async def test_takes_the_digest_once(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    path = write(tmp_path / "base.iso")
    image = entry(path.as_uri())
    sidecar = bench.data_dir / f"{image.file_name}.json"
    assert await digest_of(bench, lines, image) == SHA256

    sidecar.write_text(sidecar.read_text().replace(SHA256, "ab" * 32))
    assert await digest_of(bench, lines, image) == "ab" * 32  # so it was not taken again

    os.utime(path, ns=(0, 1))
    assert await digest_of(bench, lines, image) == SHA256


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"sha256": 1}', b"{}"])
@ensure_deferred
async def test_takes_the_digest_anew_when_the_sidecar_is_damaged(
    bench: Bench, lines: Lines, tmp_path: Path, content: bytes
) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    sidecar = write(bench.data_dir / f"{image.file_name}.json", content)
    assert await digest_of(bench, lines, image) == SHA256
    assert json.loads(sidecar.read_bytes())["sha256"] == SHA256


@ensure_deferred
async def test_serves_without_a_place_for_the_digest(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    (bench.data_dir / f"{image.file_name}.json").mkdir(parents=True)
    assert await digest_of(bench, lines, image) == SHA256


# Finding.


@ensure_deferred
async def test_finds_by_build_before_openshift_version(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    url = write(tmp_path / "base.iso").as_uri()
    images = [
        entry(url, "a", "4.18"),
        entry(url, "4.18", "b"),
        entry(url, "c", "4.17"),
        entry(url, "d", "4.17"),
    ]
    catalog = bench.start(*images)
    for image in images:
        await lines.until(image.file_name, BaseImageState.READY)

    found = {
        name: catalog.find_base_image(name, "x86_64", Kind.FULL_ISO).version
        for name in ("4.18", "b", "4.17", "d")
    }
    assert found == {"4.18": "4.18", "b": "4.18", "4.17": "c", "d": "d"}


@ensure_deferred
async def test_finds_by_content_where_only_one_has_it(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    twins, other = write(tmp_path / "twins.iso").as_uri(), tmp_path / "other.iso"
    other.write_bytes(build_live_iso({**live_files(), "coreos/other": b"other"}))
    images = [entry(twins, "a"), entry(twins, "b"), entry(other.as_uri(), "c")]
    catalog = bench.start(*images)
    lone = hashlib.sha256(other.read_bytes()).hexdigest()
    assert catalog.find_by_digest(lone, Kind.FULL_ISO) is None, "it is not ready"
    for image in images:
        await lines.until(image.file_name, BaseImageState.READY)

    alike = catalog.find_base_image("a", "x86_64", Kind.FULL_ISO).sha256
    assert catalog.find_by_digest(alike, Kind.FULL_ISO) is None
    assert catalog.find_by_digest(lone, Kind.MINIMAL_ISO) is catalog.find_base_image(
        "c", "x86_64", Kind.FULL_ISO
    )
    assert catalog.find_by_digest(lone, Kind.DISCONNECTED_ISO) is None


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("4.20", "x86_64", Kind.FULL_ISO), "there is full-iso 9.6.1-0 for x86_64 .4.19."),
        (("4.19", "s390x", Kind.FULL_ISO), "'s390x'"),
        (("4.19", "x86_64", Kind.DISCONNECTED_ISO), "no disconnected-iso '4.19'"),
        (("4.20", "x86_64", Kind.PXE_INITRD), "no full-iso '4.20'"),
    ],
)
@ensure_deferred
async def test_names_what_there_is(
    reactor: EPollReactor, tmp_path: Path, asked: tuple[str, str, Kind], says: str
) -> None:
    catalog = Catalog(reactor, Clock(), [entry(NOWHERE)], ImageFetcher(DataDir(tmp_path), lambda *_: None))
    with pytest.raises(NotFound, match=says):
        catalog.find_base_image(*asked)
    await catalog.stop()


@ensure_deferred
async def test_does_not_let_slow_downloads_hold_up_the_rest(
    bench: Bench, lines: Lines, origin: Origin, tmp_path: Path
) -> None:
    url = origin.serve("/slow.iso", Reply(b"", promised=len(ISO), hold=True))
    slow = [entry(url, f"slow{index}", f"s{index}") for index in range(DOWNLOADS + 1)]
    quick = entry(write(tmp_path / "quick.iso").as_uri())
    catalog = bench.start(*slow, quick)
    await lines.until(quick.file_name, BaseImageState.READY)

    states = [status.state for status in catalog.statuses()]
    assert states == [BaseImageState.DOWNLOADING] * DOWNLOADS + [BaseImageState.WAITING, BaseImageState.READY]
    assert not catalog.is_ready
    for image, state in zip(slow, states, strict=False):
        with pytest.raises(Unavailable, match=f"is {state.value}(: 0 of {len(ISO)} bytes)?$") as refusal:
            catalog.find_base_image(image.version, "x86_64", Kind.FULL_ISO)
        assert refusal.value.retry_after_seconds

    origin.released.set()
    for image in slow:
        await lines.until(image.file_name, BaseImageState.FAILED)
    assert catalog.is_ready


@ensure_deferred
async def test_is_not_ready_while_no_image_is(bench: Bench, lines: Lines, origin: Origin) -> None:
    image = entry(origin.url("/missing.iso"))
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    assert not catalog.is_ready


# Stopping.


@ensure_deferred
async def test_stops_in_the_middle_of_a_download(bench: Bench, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO[:1000], promised=len(ISO), hold=True)))
    before = open_files()
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.DOWNLOADING)
    origin.holding.wait()

    await catalog.stop()

    assert [status.state for status in catalog.statuses()] == [BaseImageState.STOPPED]
    assert bench.names() <= partial_names(image)
    assert bench.clock.getDelayedCalls() == []
    assert not origin.released.is_set()
    origin.close()
    assert open_files() <= before


@ensure_deferred
async def test_stops_while_it_takes_a_digest(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    before = open_files()
    catalog = bench.start(image)
    await catalog.stop()  # the thread may be anywhere; nothing of it stays open

    assert [status.state for status in catalog.statuses()] == [BaseImageState.STOPPED]
    assert open_files() == before
    assert lines.events


@ensure_deferred
async def test_closes_each_file_once(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    descriptor = catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).file.descriptor

    await catalog.stop()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with (tmp_path / "base.iso").open() as other:
        os.dup2(other.fileno(), descriptor)
        await catalog.stop()
        os.close(descriptor)
    with pytest.raises(Unavailable, match="is stopped"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)


@ensure_deferred
async def test_does_not_try_again_after_it_stopped(bench: Bench, lines: Lines, origin: Origin) -> None:
    image = entry(origin.url("/missing.iso"))
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    await catalog.stop()
    assert bench.clock.getDelayedCalls() == []


@ensure_deferred
async def test_does_not_try_again_what_fails_while_it_stops(reactor: EPollReactor, tmp_path: Path) -> None:
    fetching, stopping, clock = threading.Event(), threading.Event(), Clock()

    def fetch(url: str, partial: Path, interruption: Interruption, progress: ReportProgress) -> None:
        del url, partial, interruption, progress
        fetching.set()
        stopping.wait()
        raise Unavailable("cable cut")

    catalog = Catalog(reactor, clock, [entry(NOWHERE)], ImageFetcher(DataDir(tmp_path), fetch))
    catalog.start()
    fetching.wait()
    stopped = Deferred.fromCoroutine(catalog.stop())
    stopping.set()
    await stopped

    assert clock.getDelayedCalls() == []


@ensure_deferred
async def test_removes_what_a_killed_process_left(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    write(bench.data_dir / ".rhcos-full-iso-1-x86_64.iso.0a1b2c3d.part")
    kept = {
        ".rhcos-notes.part",
        "rhcos-full-iso-1-x86_64.iso",
        ".rhcos-1.iso.0a1b2c3d.part.bak",
        "x.0a1b2c3d.part",
    }
    for name in kept:
        write(bench.data_dir / name)
    bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)

    assert bench.names() == kept | {f"{image.file_name}.json"}


@ensure_deferred
async def test_tells_each_change_of_state_in_one_line(bench: Bench, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO)) + "?signature=top-secret")
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    await catalog.stop()

    states = ("downloading", "verifying", "ready", "stopped")
    told = [line for line in lines.text.splitlines() if f"{image.file_name} is" in line]
    assert told == [f"base image {image.file_name} is {state}" for state in states]
    assert "top-secret" not in lines.text


# How far it is.


@ensure_deferred
async def test_tells_how_far_a_download_is(bench: Bench, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO[:4096], promised=len(ISO), hold=True)))
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.DOWNLOADING)
    origin.holding.wait()
    while catalog.statuses()[0].bytes_done < 4096:
        await deferLater(bench.reactor, 0.001)

    (status,) = catalog.statuses()
    assert (status.bytes_done, status.bytes_total) == (4096, len(ISO))
    assert (status.size, status.sha256, status.retry_at) == (None, None, None)
    with pytest.raises(Unavailable, match=f"is downloading: 4096 of {len(ISO)} bytes$"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)


@ensure_deferred
async def test_tells_what_is_ready_by_size_and_digest(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    (status,) = catalog.statuses()
    assert (status.bytes_done, status.bytes_total, status.size) == (len(ISO),) * 3
    assert (status.sha256, status.reason, status.image) == (SHA256, "", image.file_name)


# What fails, and is tried again.


@ensure_deferred
async def test_waits_longer_after_each_failure(bench: Bench, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", *[Reply(status=500)] * 4, Reply(ISO), Reply(status=500)))
    catalog = bench.start(image)
    for times in (1, 2, 4, 4):
        await lines.until(image.file_name, BaseImageState.FAILED)
        assert catalog.statuses()[0].retry_at == bench.clock.seconds() + times * RETRY_SECONDS
        bench.clock.advance(times * RETRY_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)
    assert catalog.statuses()[0].retry_at is None


@ensure_deferred
async def test_does_not_ask_again_before_the_origin_wants_it(
    bench: Bench, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(status=429, headers={"Retry-After": "1000"}), Reply(ISO)))
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    with pytest.raises(Unavailable, match=r"is failed: .*429") as refusal:
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    assert refusal.value.retry_after_seconds == 1000
    bench.clock.advance(999)
    assert len(origin.requests) == 1
    bench.clock.advance(1)
    await lines.until(image.file_name, BaseImageState.READY)


@ensure_deferred
async def test_fetches_again_what_it_fetched_and_finds_bad_at_the_next_start(
    bench: Bench, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO)))
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    await catalog.stop()
    path = bench.data_dir / image.file_name
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_bytes(bytes(len(ISO)))
    os.utime(path, ns=times)

    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    assert path.read_bytes() == ISO
    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256
    assert len(origin.requests) == 2


@ensure_deferred
async def test_reads_what_it_did_not_fetch_in_the_background_and_fetches_it_again_if_it_rotted(
    bench: Bench, lines: Lines, origin: Origin
) -> None:
    content = build_live_iso({**live_files(), "images/pxeboot/initrd.img": bytes(4 * 2**20)})
    image = entry(origin.serve("/base.iso", Reply(content)))
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    bench.clock.advance(RECHECK_AFTER_SECONDS)
    await catalog.stop()
    path = bench.data_dir / image.file_name
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_bytes(content[:-2_000_000] + b"rot" + content[-1_999_997:])
    os.utime(path, ns=times)

    gone: list[BaseImage] = []
    catalog = bench.start(image, on_superseded=gone.append)
    await lines.until(image.file_name, BaseImageState.READY)
    rotten = catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    bench.clock.advance(RECHECK_AFTER_SECONDS)
    await lines.until(image.file_name, BaseImageState.FAILED)
    with pytest.raises(Unavailable, match="content changed"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    assert gone == [rotten]
    bench.clock.advance(RETRY_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)
    assert path.read_bytes() == content
    assert len(origin.requests) == 2


@ensure_deferred
async def test_refuses_a_file_that_rotted_and_leaves_it(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    path = write(tmp_path / "base.iso")
    image = entry(path.as_uri())
    sidecar = bench.data_dir / f"{image.file_name}.json"
    await digest_of(bench, lines, image)
    sidecar.write_text(sidecar.read_text().replace(SHA256, "ab" * 32))
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    bench.clock.advance(RECHECK_AFTER_SECONDS)
    await lines.until(image.file_name, BaseImageState.REFUSED)
    with pytest.raises(BaseImageError, match="content changed"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    assert path.read_bytes() == ISO


# Images that come and go.


@ensure_deferred
async def test_goes_on_with_images_that_stay_and_begins_with_new_ones(
    bench: Bench, lines: Lines, tmp_path: Path
) -> None:
    url = write(tmp_path / "base.iso").as_uri()
    old, stays, new = (entry(url, version, version) for version in ("old", "stays", "new"))
    gone: list[BaseImage] = []
    catalog = bench.start(old, stays, on_superseded=gone.append)
    for image in (old, stays):
        await lines.until(image.file_name, BaseImageState.READY)
    before = catalog.find_base_image("stays", "x86_64", Kind.FULL_ISO)

    catalog.replace_images([attrs.evolve(stays, openshift_versions=("4.21",)), new, attrs.evolve(new)])
    await lines.until(new.file_name, BaseImageState.READY)
    assert catalog.find_base_image("4.21", "x86_64", Kind.FULL_ISO) is before
    assert [status.entry.version for status in catalog.statuses()] == ["stays", "new"]
    with pytest.raises(NotFound):
        catalog.find_base_image("old", "x86_64", Kind.FULL_ISO)
    assert [base.version for base in gone] == ["old"]


@ensure_deferred
async def test_keeps_what_it_has_and_what_is_derived_from_it(
    bench: Bench, lines: Lines, origin: Origin
) -> None:
    old, new = (entry(origin.serve(f"/{name}", Reply(ISO)), name) for name in ("1", "2"))
    catalog = bench.start(old, new)
    for image in (old, new):
        await lines.until(image.file_name, BaseImageState.READY)
    names = bench.names()
    data_dir = DataDir(bench.data_dir, retention_seconds=-1)
    assert data_dir.collect_garbage(catalog.retained_names) == []
    assert bench.names() == names
    catalog.replace_images([new])
    assert data_dir.collect_garbage(catalog.retained_names) == [old.file_name]
    assert bench.names() == {new.file_name, f"{new.file_name}.json"}
    assert catalog.retained_names == {
        new.file_name,
        "rhcos-derived-minimal-iso-2-x86_64.iso",
        "rhcos-nmstate-2-x86_64.img",
    }


@ensure_deferred
async def test_a_superseded_image_is_open_for_as_long_as_somebody_refers_to_it(
    bench: Bench, lines: Lines, tmp_path: Path
) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    reader = [catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)]
    descriptor = reader[0].file.descriptor
    catalog.replace_images([])
    (tmp_path / "base.iso").unlink()
    gc.collect()
    assert os.pread(descriptor, len(ISO), 0) == ISO
    reader.clear()
    while is_open(descriptor):  # until the thread that opened it has let go of it, too
        await deferLater(bench.reactor, 0.001)
        gc.collect()


@ensure_deferred
async def test_stop_closes_what_somebody_still_refers_to(bench: Bench, lines: Lines, tmp_path: Path) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    before = open_files()
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    reader = catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    catalog.replace_images([])
    await catalog.stop()
    assert open_files() == before
    assert reader.sha256 == SHA256


@ensure_deferred
async def test_ends_the_download_of_an_image_that_nobody_wants_any_more(
    bench: Bench, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO[:1000], promised=len(ISO), hold=True)))
    catalog = bench.start(image)
    await lines.until(image.file_name, BaseImageState.DOWNLOADING)
    origin.holding.wait()
    catalog.replace_images([])
    await lines.until(image.file_name, BaseImageState.STOPPED)
    assert not origin.released.is_set()
    assert bench.clock.getDelayedCalls() == []


@ensure_deferred
async def test_a_name_stands_for_the_image_that_it_was_given_to(
    bench: Bench, lines: Lines, tmp_path: Path
) -> None:
    url = write(tmp_path / "base.iso").as_uri()
    images = [entry(url, version, "stable") for version in ("44.2", "44.1")]
    catalog = bench.start(*images)
    for image in images:
        await lines.until(image.file_name, BaseImageState.READY)

    def found() -> str:
        return catalog.find_base_image("stable", "x86_64", Kind.FULL_ISO).version

    assert found() == "44.2"
    catalog.set_aliases({("stable", "x86_64"): "44.1", ("stable", "s390x"): "44.2"})
    assert found() == "44.1"
    assert catalog.find_base_image("44.2", "x86_64", Kind.FULL_ISO).version == "44.2"
    catalog.replace_images(images[::-1])
    assert found() == "44.1"
    catalog.set_aliases({("stable", "x86_64"): "44.2"})
    assert found() == "44.2"


# What is derived.


@attrs.define
class Deriving:
    """Makes what a base needs when it is told to."""

    begun: list[BaseImage] = attrs.field(factory=list)
    waiting: list[Deferred[None]] = attrs.field(factory=list)

    def __call__(self, base: BaseImage) -> Deferred[None]:
        """As ``DerivedImages.derive``."""
        self.begun.append(base)
        self.waiting.append(Deferred())
        return self.waiting[-1]


@ensure_deferred
async def test_serves_a_full_iso_while_something_is_derived_from_it(
    bench: Bench, lines: Lines, tmp_path: Path
) -> None:
    image, derive = entry(write(tmp_path / "base.iso").as_uri()), Deriving()
    catalog = bench.start(image, derive=derive)
    await lines.until(image.file_name, BaseImageState.DERIVING)

    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO) is derive.begun[0]
    assert (catalog.is_ready, catalog.has_ready_image("9.6.1-0", "x86_64")) == (False, False)
    derive.waiting[0].callback(None)
    await lines.until(image.file_name, BaseImageState.READY)
    assert catalog.is_ready
    assert catalog.has_ready_image("9.6.1-0", "x86_64")
    assert not catalog.has_ready_image("9.6.1-0", "s390x")


@ensure_deferred
async def test_derives_again_what_could_not_be_derived_and_serves_the_full_iso(
    bench: Bench, lines: Lines, tmp_path: Path
) -> None:
    image, derive = entry(write(tmp_path / "base.iso").as_uri()), Deriving()
    catalog = bench.start(image, derive=derive)
    await lines.until(image.file_name, BaseImageState.DERIVING)
    derive.waiting[0].errback(Unavailable("no xorriso", retry_after_seconds=90))
    await lines.until(image.file_name, BaseImageState.FAILED)

    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256
    assert catalog.is_ready
    assert catalog.statuses()[0].reason == "no xorriso"
    bench.clock.advance(90)
    derive.waiting[1].callback(None)
    await lines.until(image.file_name, BaseImageState.READY)
    assert derive.begun[0] is derive.begun[1]  # it was not read again
    assert catalog.statuses()[0].reason == ""


# When the whole is ready.


@ensure_deferred
async def test_one_image_is_enough_if_that_is_wanted(
    bench: Bench, lines: Lines, origin: Origin, tmp_path: Path
) -> None:
    slow = entry(origin.serve("/slow.iso", Reply(b"", promised=len(ISO), hold=True)), "slow")
    quick, derive = entry(write(tmp_path / "quick.iso").as_uri()), Deriving()
    catalog = bench.start(slow, quick, ready_when_any=True, derive=derive)
    await lines.until(quick.file_name, BaseImageState.DERIVING)
    assert (catalog.is_ready, catalog.has_ready_image("9.6.1-0", "x86_64")) == (False, False)
    derive.waiting[0].callback(None)
    await lines.until(quick.file_name, BaseImageState.READY)
    assert catalog.is_ready


@ensure_deferred
async def test_a_bad_url_holds_up_nobody(bench: Bench, lines: Lines, origin: Origin) -> None:
    bad = [entry(origin.url("/missing.iso"), f"bad{index}") for index in range(DOWNLOADS)]
    good = [entry(origin.serve(f"/{name}", Reply(ISO)), name) for name in ("a.iso", "b.iso")]
    catalog = bench.start(*bad, *good)
    for image in good:
        await lines.until(image.file_name, BaseImageState.READY)
    for image in bad:
        await lines.until(image.file_name, BaseImageState.FAILED)
    assert catalog.is_ready
