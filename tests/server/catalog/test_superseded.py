"""Superseded base images: found again at the next start, and removed when no mount reads them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.task import deferLater

from image_service.core.errors import Unavailable
from image_service.core.images.reference import Kind
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.catalog.storage.base_records import (
    RECORDS,
    BaseRecord,
    BaseRecords,
    superseded_name,
)
from image_service.server.catalog.storage.data_dir import DataDir
from image_service.server.catalog.storage.digest import stored_sha256
from image_service.server.catalog.superseded import MAX_SUPERSEDED
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.pytwisted import ensure_deferred
from tests.server.catalog.catalogs import entry, write
from tests.server.catalog.origin import Origin, Reply

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.catalog import Catalog
    from image_service.settings.os_images import OsImage
    from tests.server.catalog.catalogs import Catalogs
    from tests.server.catalog.lines import Lines

OLD, NEW = (build_live_iso({**live_files(), "coreos/x": content}) for content in (b"old", b"new"))
OLD_SHA256, NEW_SHA256 = (hashlib.sha256(content).hexdigest() for content in (OLD, NEW))


def served(origin: Origin, content: bytes, version: str = "9.6.1-0") -> OsImage:
    sha256 = hashlib.sha256(content).hexdigest()
    return attrs.evolve(entry(origin.serve(f"/{sha256}.iso", Reply(content)), version), sha256=sha256)


async def until_open(catalogs: Catalogs, catalog: Catalog, sha256: str) -> BaseImage | None:
    """Return the base image with a digest when it is not being opened any more."""
    while True:
        catalog.superseded.update()
        try:
            return catalog.find_by_digest(sha256, Kind.FULL_ISO)
        except Unavailable:
            await deferLater(catalogs.reactor, 0.001)


async def until_gone(catalogs: Catalogs, path: Path) -> None:
    while path.exists():  # noqa: ASYNC240 - of a test, and fast
        await deferLater(catalogs.reactor, 0.001)


def content_of(base: BaseImage | None) -> bytes:
    assert base is not None
    return base.file.read_at(0, base.file.size)


@pytest.mark.parametrize("version", ["9.6.1-0", "9.6.2-0"])
@pytest.mark.parametrize("reloads", [True, False])
@ensure_deferred
async def test_downloaded_base_is_found_after_a_restart(
    catalogs: Catalogs, lines: Lines, origin: Origin, version: str, *, reloads: bool
) -> None:
    old, new = served(origin, OLD), served(origin, NEW, version)
    catalog = catalogs.start(old, is_recorded=True)
    await lines.until(old.file_name, BaseImageState.READY)
    if reloads:
        catalog.replace_images([new])
        await lines.until(new.file_name, BaseImageState.READY)
        assert content_of(catalog.find_by_digest(OLD_SHA256, Kind.FULL_ISO)) == OLD
    await catalog.stop()

    catalog = catalogs.start(new, is_recorded=True)
    await lines.until(new.file_name, BaseImageState.READY)
    assert content_of(await until_open(catalogs, catalog, OLD_SHA256)) == OLD
    assert content_of(catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)) == NEW
    data_dir = DataDir(catalogs.data_dir, retention_seconds=-1)
    assert data_dir.collect_garbage(catalog.retained_names) == []


@ensure_deferred
async def test_base_is_open_while_the_one_in_its_place_is_downloaded(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    old = served(origin, OLD)
    catalog = catalogs.start(old, is_recorded=True)
    await lines.until(old.file_name, BaseImageState.READY)
    await catalog.stop()
    url = origin.serve("/slow.iso", Reply(NEW, hold_head=True))
    new = attrs.evolve(entry(url, old.version), sha256=NEW_SHA256)
    catalog = catalogs.start(new, is_recorded=True)
    while not [request for request in origin.requests if "slow" in request.target]:
        await deferLater(catalogs.reactor, 0.001)
    kept = catalogs.data_dir / superseded_name((old.file_name, OLD_SHA256))
    assert content_of(await until_open(catalogs, catalog, OLD_SHA256)) == OLD
    assert kept.read_bytes() == OLD
    assert stored_sha256(kept.with_name(f"{kept.name}.json")) == OLD_SHA256
    origin.released.set()
    await lines.until(new.file_name, BaseImageState.READY)


@ensure_deferred
async def test_base_that_no_mount_reads_is_not_opened(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    old, new = served(origin, OLD), served(origin, NEW)
    catalog = catalogs.start(old, is_recorded=True)
    await lines.until(old.file_name, BaseImageState.READY)
    await catalog.stop()
    catalog = catalogs.start(attrs.evolve(new, sha256=None), is_recorded=True)
    opening = [catalog.superseded.is_opening]  # until it is known whether it is the configured one
    catalog.superseded.record_mounts({NEW_SHA256: 1})
    assert [*opening, catalog.superseded.is_opening] == [True, False]
    await lines.until(new.file_name, BaseImageState.READY)


@ensure_deferred
async def test_base_in_another_directory_is_found_after_a_restart(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    old, new = (entry(write(tmp_path / f"{len(x)}.iso", x).as_uri(), version="v") for x in (OLD, NEW + b"\0"))
    catalog = catalogs.start(old, is_recorded=True)
    await lines.until(old.file_name, BaseImageState.READY)
    await catalog.stop()
    catalog = catalogs.start(new, is_recorded=True)
    await lines.until(new.file_name, BaseImageState.READY)
    assert content_of(await until_open(catalogs, catalog, OLD_SHA256)) == OLD


@ensure_deferred
async def test_released_base_is_removed_with_what_was_kept_for_it(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    old, new = served(origin, OLD), served(origin, NEW)
    gone: list[BaseImage] = []
    catalog = catalogs.start(old, is_recorded=True, on_superseded=gone.append)
    await lines.until(old.file_name, BaseImageState.READY)
    catalog.replace_images([new])
    await lines.until(new.file_name, BaseImageState.READY)
    kept = catalogs.data_dir / superseded_name((old.file_name, OLD_SHA256))
    assert kept.read_bytes() == OLD
    catalog.superseded.record_mounts({OLD_SHA256: 3})
    (described,) = catalog.superseded.describe()
    assert (described.sha256, described.mounts, described.size) == (OLD_SHA256, 3, len(OLD))

    catalog.superseded.release(gone.pop())
    await until_gone(catalogs, kept)
    assert catalog.find_by_digest(OLD_SHA256, Kind.FULL_ISO) is None
    assert catalog.superseded.describe() == ()
    await catalog.stop()
    assert catalogs.names() == {new.file_name, f"{new.file_name}.json"}
    assert [record.sha256 for record in BaseRecords(DataDir(catalogs.data_dir)).read()] == [NEW_SHA256]


@ensure_deferred
async def test_base_whose_bytes_have_changed_is_lost(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    old, new = served(origin, OLD), served(origin, NEW)
    catalog = catalogs.start(old, is_recorded=True)
    await lines.until(old.file_name, BaseImageState.READY)
    catalog.replace_images([new])
    await lines.until(new.file_name, BaseImageState.READY)
    await catalog.stop()
    kept = catalogs.data_dir / superseded_name((old.file_name, OLD_SHA256))
    kept.write_bytes(OLD[:-1] + b"!")

    catalog = catalogs.start(new, is_recorded=True)
    await lines.until(new.file_name, BaseImageState.READY)
    assert await until_open(catalogs, catalog, OLD_SHA256) is None
    assert "its mounts have to start over" in lines.text


@ensure_deferred
async def test_unchanged_base_is_not_opened_twice(catalogs: Catalogs, lines: Lines, origin: Origin) -> None:
    image = served(origin, OLD)
    for start in (image, attrs.evolve(image, sha256=None)):
        catalog = catalogs.start(start, is_recorded=True)
        await lines.until(image.file_name, BaseImageState.READY)
        catalog.superseded.update()
        assert catalog.superseded.describe() == ()
        assert catalog.find_by_digest(OLD_SHA256, Kind.FULL_ISO) is catalog.find_base_image(
            "4.19", "x86_64", Kind.FULL_ISO
        )
        await catalog.stop()


@ensure_deferred
async def test_only_the_latest_superseded_bases_are_kept_for_the_next_start(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    contents = [
        build_live_iso({**live_files(), "coreos/x": bytes([number])}) for number in range(MAX_SUPERSEDED + 2)
    ]
    images = [served(origin, content) for content in contents]
    catalog = catalogs.start(images[0], is_recorded=True)
    for image in images:
        catalog.replace_images([image])
        await lines.until(image.file_name, BaseImageState.READY)
    surplus, *kept = [image.sha256 or "" for image in images[:-1]]
    await until_gone(catalogs, catalogs.data_dir / superseded_name((images[0].file_name, surplus)))
    assert content_of(catalog.find_by_digest(surplus, Kind.FULL_ISO)) == contents[0], "until a restart"
    await catalog.stop()

    catalog = catalogs.start(images[-1], is_recorded=True)
    await lines.until(images[-1].file_name, BaseImageState.READY)
    assert [await until_open(catalogs, catalog, sha256) is not None for sha256 in kept] == [True] * len(kept)
    assert await until_open(catalogs, catalog, surplus) is None


def test_room_for_a_download_is_made_of_superseded_images(tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path, max_bytes=100_000)
    data_dir.open()
    data_dir.partial_path("image").write_bytes(bytes(90_000))
    data_dir.publish("image")
    assert data_dir.rename_image("image", superseded_name(("image", OLD_SHA256)))
    with data_dir.quota.reserve("next") as check:
        check(0, 80_000)
    assert not (tmp_path / superseded_name(("image", OLD_SHA256))).exists()
    data_dir.close()


def test_records_have_no_credentials(tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path)
    data_dir.open()
    records = BaseRecords(data_dir)
    image = entry("https://user:secret@origin.test/base.iso?token=secret")
    records.add(BaseRecord.of(image, OLD_SHA256))
    assert b"secret" not in (tmp_path / RECORDS).read_bytes()
    (record,) = records.read()
    assert record == BaseRecord.of(image, OLD_SHA256)
    data_dir.close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "bases": [{}]}'])
def test_unreadable_records_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RECORDS).write_bytes(content)
    assert BaseRecords(DataDir(tmp_path)).read() == ()
