from __future__ import annotations

import gc
import hashlib
import os
import threading
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater

from image_service.core.errors import NotFound, Unavailable
from image_service.core.images.reference import Kind
from image_service.server.catalog.catalog import Catalog
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.lifecycle.lifecycle import BaseImageLifecycle
from image_service.server.catalog.lifecycle.options import DOWNLOADS
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.catalog.storage.data_dir import DataDir
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.pytwisted import ensure_deferred
from tests.server.catalog.catalogs import (
    ISO,
    NOWHERE,
    SHA256,
    Catalogs,
    entry,
    is_open,
    open_files,
    partial_names,
    write,
)
from tests.server.catalog.origin import Origin, Reply

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.common.concurrency.interruption import Interruption
    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.download.downloader import ReportProgress
    from image_service.settings.os_images import OsImage
    from tests.server.catalog.lines import Lines

# Finding.


@ensure_deferred
async def test_os_build_goes_before_openshift_version(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    url = write(tmp_path / "base.iso").as_uri()
    images = [
        entry(url, "a", "4.18"),
        entry(url, "4.18", "b"),
        entry(url, "c", "4.17"),
        entry(url, "d", "4.17"),
    ]
    catalog = catalogs.start(*images)
    for image in images:
        await lines.until(image.file_name, BaseImageState.READY)

    found = {
        name: catalog.find_base_image(name, "x86_64", Kind.FULL_ISO).version
        for name in ("4.18", "b", "4.17", "d")
    }
    assert found == {"4.18": "4.18", "b": "4.18", "4.17": "c", "d": "d"}


@ensure_deferred
async def test_find_by_digest_returns_the_only_image_with_it(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    twins, other = write(tmp_path / "twins.iso").as_uri(), tmp_path / "other.iso"
    other.write_bytes(build_live_iso({**live_files(), "coreos/other": b"other"}))
    images = [entry(twins, "a"), entry(twins, "b"), entry(other.as_uri(), "c")]
    catalog = catalogs.start(*images)
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
async def test_unknown_image_lists_the_known_ones(
    reactor: EPollReactor, tmp_path: Path, asked: tuple[str, str, Kind], says: str
) -> None:
    catalog = Catalog(reactor, Clock(), [entry(NOWHERE)], ImageFetcher(DataDir(tmp_path), lambda *_: None))
    with pytest.raises(NotFound, match=says):
        catalog.find_base_image(*asked)
    await catalog.stop()


@ensure_deferred
async def test_slow_downloads_do_not_delay_other_images(
    catalogs: Catalogs, lines: Lines, origin: Origin, tmp_path: Path
) -> None:
    url = origin.serve("/slow.iso", Reply(b"", promised=len(ISO), hold=True))
    slow = [entry(url, f"slow{index}", f"s{index}") for index in range(DOWNLOADS + 1)]
    quick = entry(write(tmp_path / "quick.iso").as_uri())
    catalog = catalogs.start(*slow, quick)
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
async def test_catalog_without_a_ready_image_is_not_ready(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.url("/missing.iso"))
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    assert not catalog.is_ready


# Stopping.


@ensure_deferred
async def test_stop_interrupts_a_download(catalogs: Catalogs, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO[:1000], promised=len(ISO), hold=True)))
    before = open_files()
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.DOWNLOADING)
    origin.holding.wait()

    await catalog.stop()

    assert [status.state for status in catalog.statuses()] == [BaseImageState.STOPPED]
    assert catalogs.names() <= partial_names(image)
    assert catalogs.clock.getDelayedCalls() == []
    assert not origin.released.is_set()
    origin.close()
    assert open_files() <= before


@ensure_deferred
async def test_stop_interrupts_verification(catalogs: Catalogs, lines: Lines, tmp_path: Path) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    before = open_files()
    catalog = catalogs.start(image)
    await catalog.stop()  # the thread may be anywhere; nothing of it stays open

    assert [status.state for status in catalog.statuses()] == [BaseImageState.STOPPED]
    assert open_files() == before
    assert lines.events


@ensure_deferred
async def test_stop_closes_each_file_once(catalogs: Catalogs, lines: Lines, tmp_path: Path) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    catalog = catalogs.start(image)
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
async def test_stop_cancels_retries(catalogs: Catalogs, lines: Lines, origin: Origin) -> None:
    image = entry(origin.url("/missing.iso"))
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    await catalog.stop()
    assert catalogs.clock.getDelayedCalls() == []


@ensure_deferred
async def test_failure_during_stop_is_not_retried(reactor: EPollReactor, tmp_path: Path) -> None:
    fetching, stopping, clock = threading.Event(), threading.Event(), Clock()

    def fetch(url: str, partial: Path, interruption: Interruption, progress: ReportProgress, _: str) -> None:
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
async def test_start_removes_temporary_files_of_a_killed_process(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    write(catalogs.data_dir / ".rhcos-full-iso-1-x86_64.iso.0a1b2c3d.part")
    kept = {
        ".rhcos-notes.part",
        "rhcos-full-iso-1-x86_64.iso",
        ".rhcos-1.iso.0a1b2c3d.part.bak",
        "x.0a1b2c3d.part",
    }
    for name in kept:
        write(catalogs.data_dir / name)
    catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)

    assert catalogs.names() == kept | {f"{image.file_name}.json"}


@ensure_deferred
async def test_each_change_of_state_is_one_log_line(catalogs: Catalogs, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO)) + "?signature=top-secret")
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    await catalog.stop()

    states = ("downloading", "verifying", "ready", "stopped")
    logged = [line for line in lines.text.splitlines() if f"{image.file_name} is" in line]
    assert logged == [f"base image {image.file_name} is {state}" for state in states]
    assert "top-secret" not in lines.text


# Replacing images.


@ensure_deferred
async def test_replace_images_keeps_common_images_and_starts_new_ones(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    url = write(tmp_path / "base.iso").as_uri()
    old, stays, new = (entry(url, version, version) for version in ("old", "stays", "new"))
    gone: list[BaseImage] = []
    catalog = catalogs.start(old, stays, on_superseded=gone.append)
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
async def test_images_that_stay_are_not_compared_with_all_others(
    catalogs: Catalogs, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each image that becomes ready replaces them: the start would take the cube of their number."""
    url = write(tmp_path / "base.iso").as_uri()
    images = [entry(url, version, version) for version in ("one", "two", "three")]
    catalog = catalogs.start(*images)
    for image in images:
        await lines.until(image.file_name, BaseImageState.READY)
    compared: list[OsImage] = []
    monkeypatch.setattr(BaseImageLifecycle, "serves", lambda _, other: compared.append(other))
    catalog.replace_images(images)
    assert [status.entry for status in catalog.statuses()] == images
    assert compared == []


@ensure_deferred
async def test_served_image_stays_when_its_url_changes(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    image = attrs.evolve(entry(origin.serve("/base.iso", Reply(ISO))), sha256=SHA256)
    gone: list[BaseImage] = []
    catalog = catalogs.start(image, on_superseded=gone.append)
    await lines.until(image.file_name, BaseImageState.READY)
    before = catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    for moved in (attrs.evolve(image, url=NOWHERE, sha256=None), attrs.evolve(image, url=NOWHERE)):
        catalog.replace_images([moved])
        assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO) is before
        assert [status.entry for status in catalog.statuses()] == [moved]
    catalog.replace_images([attrs.evolve(moved, sha256="ab" * 32)])
    with pytest.raises(Unavailable):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    assert gone == [before]


@ensure_deferred
async def test_image_that_is_added_later_does_not_end_readiness(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO)))
    hanging = entry(origin.serve("/hanging.iso", Reply(ISO, hold_head=True)), "hanging", "hanging")
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    catalog.replace_images([image, hanging])
    await lines.until(hanging.file_name, BaseImageState.DOWNLOADING)
    assert catalog.is_ready
    catalog.replace_images([hanging])
    assert not catalog.is_ready


@ensure_deferred
async def test_retained_names_are_images_and_derived_files(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    old, new = (entry(origin.serve(f"/{name}", Reply(ISO)), name) for name in ("1", "2"))
    catalog = catalogs.start(old, new)
    for image in (old, new):
        await lines.until(image.file_name, BaseImageState.READY)
    names = catalogs.names()
    data_dir = DataDir(catalogs.data_dir, retention_seconds=-1)
    assert data_dir.collect_garbage(catalog.retained_names) == []
    assert catalogs.names() == names
    catalog.replace_images([new])
    assert data_dir.collect_garbage(catalog.retained_names) == [old.file_name]
    assert catalogs.names() == {new.file_name, f"{new.file_name}.json"}
    assert catalog.retained_names == {
        new.file_name,
        "rhcos-derived-minimal-iso-2-x86_64.iso",
        "rhcos-nmstate-2-x86_64.img",
    }


@ensure_deferred
async def test_superseded_image_stays_open_while_it_is_referenced(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    reader = [catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)]
    descriptor = reader[0].file.descriptor
    catalog.replace_images([])
    (tmp_path / "base.iso").unlink()
    gc.collect()
    assert os.pread(descriptor, len(ISO), 0) == ISO
    reader.clear()
    while is_open(descriptor):  # until its thread drops its reference
        await deferLater(catalogs.reactor, 0.001)
        gc.collect()


@ensure_deferred
async def test_stop_closes_referenced_files(catalogs: Catalogs, lines: Lines, tmp_path: Path) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    before = open_files()
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    reader = catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    catalog.replace_images([])
    await catalog.stop()
    assert open_files() == before
    assert reader.sha256 == SHA256


@ensure_deferred
async def test_removed_image_stops_its_download(catalogs: Catalogs, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO[:1000], promised=len(ISO), hold=True)))
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.DOWNLOADING)
    origin.holding.wait()
    catalog.replace_images([])
    await lines.until(image.file_name, BaseImageState.STOPPED)
    assert not origin.released.is_set()
    assert catalogs.clock.getDelayedCalls() == []


@ensure_deferred
async def test_alias_goes_before_openshift_version(catalogs: Catalogs, lines: Lines, tmp_path: Path) -> None:
    url = write(tmp_path / "base.iso").as_uri()
    images = [entry(url, version, "stable") for version in ("44.2", "44.1")]
    catalog = catalogs.start(*images)
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


# Derivation.


@attrs.define
class Deriving:
    """Derives when the test says so."""

    started: list[BaseImage] = attrs.field(factory=list)
    waiting: list[Deferred[None]] = attrs.field(factory=list)

    def __call__(self, base: BaseImage) -> Deferred[None]:
        """As ``DerivedImages.derive``."""
        self.started.append(base)
        self.waiting.append(Deferred())
        return self.waiting[-1]


@ensure_deferred
async def test_full_iso_is_served_during_derivation(catalogs: Catalogs, lines: Lines, tmp_path: Path) -> None:
    image, derive = entry(write(tmp_path / "base.iso").as_uri()), Deriving()
    catalog = catalogs.start(image, derive=derive)
    await lines.until(image.file_name, BaseImageState.DERIVING)

    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO) is derive.started[0]
    assert (catalog.is_ready, catalog.find_states("9.6.1-0", "x86_64")) == (False, {BaseImageState.DERIVING})
    derive.waiting[0].callback(None)
    await lines.until(image.file_name, BaseImageState.READY)
    assert catalog.is_ready
    assert catalog.find_states("9.6.1-0", "x86_64") == {BaseImageState.READY}
    assert catalog.find_states("9.6.1-0", "s390x") == set()


@ensure_deferred
async def test_failed_derivation_is_retried_while_the_full_iso_is_served(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    image, derive = entry(write(tmp_path / "base.iso").as_uri()), Deriving()
    catalog = catalogs.start(image, derive=derive)
    await lines.until(image.file_name, BaseImageState.DERIVING)
    derive.waiting[0].errback(Unavailable("no xorriso", retry_after_seconds=90))
    await lines.until(image.file_name, BaseImageState.DEGRADED)

    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256
    assert catalog.is_ready
    assert (catalog.statuses()[0].state, catalog.statuses()[0].reason) == (
        BaseImageState.DEGRADED,
        "no xorriso",
    )
    catalogs.clock.advance(90)
    assert catalog.statuses()[0].state is BaseImageState.DEGRADED
    derive.waiting[1].callback(None)
    await lines.until(image.file_name, BaseImageState.READY)
    assert derive.started[0] is derive.started[1]  # it was not read again
    assert catalog.statuses()[0].reason == ""


# Readiness.


@ensure_deferred
async def test_one_ready_image_makes_the_catalog_ready_when_any(
    catalogs: Catalogs, lines: Lines, origin: Origin, tmp_path: Path
) -> None:
    slow = entry(origin.serve("/slow.iso", Reply(b"", promised=len(ISO), hold=True)), "slow")
    quick, derive = entry(write(tmp_path / "quick.iso").as_uri()), Deriving()
    catalog = catalogs.start(slow, quick, ready_when_any=True, derive=derive)
    await lines.until(quick.file_name, BaseImageState.DERIVING)
    assert (catalog.is_ready, catalog.find_states("9.6.1-0", "x86_64")) == (False, {BaseImageState.DERIVING})
    derive.waiting[0].callback(None)
    await lines.until(quick.file_name, BaseImageState.READY)
    assert catalog.is_ready


@ensure_deferred
async def test_failing_url_does_not_delay_other_images(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    bad = [entry(origin.url("/missing.iso"), f"bad{index}") for index in range(DOWNLOADS)]
    good = [entry(origin.serve(f"/{name}", Reply(ISO)), name) for name in ("a.iso", "b.iso")]
    catalog = catalogs.start(*bad, *good)
    for image in good:
        await lines.until(image.file_name, BaseImageState.READY)
    for image in bad:
        await lines.until(image.file_name, BaseImageState.FAILED)
    assert catalog.is_ready
