"""Remote images in a catalog, over the real block cache and a real HTTP server."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import deferLater

from image_service.common.files.block_cache.fetcher import THREADS
from image_service.common.files.block_cache.source import OriginFailed
from image_service.core.errors import BaseImageError, Unavailable
from image_service.core.formats.digest_list import render_digest_list
from image_service.core.images.reference import Kind
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.lifecycle.options import CatalogOptions
from image_service.server.catalog.lifecycle.signature import KeyRing
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.catalog.remote.opening import RemoteImages
from tests.origin_faults import FaultyResource, corrupt
from tests.pytwisted import ensure_deferred
from tests.remote_base import dense_base
from tests.server.catalog.origin import Origin, Reply, Resource
from tests.server.catalog.remote.remotes import CHECK_SECONDS, RemoteCatalogs, found, remote_entry, rendered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.common.concurrency.interruption import Interruption
    from image_service.core.images.base_image import BaseImage
    from tests.server.catalog.lines import Lines

ISO, OTHER = dense_base(12), dense_base(12, seed=1)


def digest_list(content: bytes) -> bytes:
    blocks = iter(range(0, len(content), 1048576))

    def read(length: int) -> bytes:
        start = next(blocks)
        return content[start : start + length]

    return "".join(render_digest_list(read, len(content))).encode()


def failing_with(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


@ensure_deferred
async def test_remote_image_is_ready_before_anything_is_derived_from_it(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines
) -> None:
    derived: list[BaseImage] = []
    image = remote_entry(origin.serve("/base.iso", Resource(ISO)))
    remotes.start(image, options=CatalogOptions(derive=derived.append))
    await lines.until(image.file_name, BaseImageState.READY)
    assert derived == []


@ensure_deferred
async def test_remote_image_is_ready_with_its_boot_files(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines
) -> None:
    image = remote_entry(origin.serve("/base.iso", Resource(ISO)) + "?signature=top-secret")
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    status = rendered(catalog)
    assert (status["remote"], status["verified"], status["sha256"]) == (True, "origin", None)
    assert status["bytes_total"] == status["size"] == len(ISO)
    done = status["bytes_done"]
    assert isinstance(done, int)
    assert 0 < done < len(ISO)
    base = found(catalog)
    assert base.file.sha256() == hashlib.sha256(ISO).hexdigest()
    assert rendered(catalog)["bytes_done"] == len(ISO)
    assert "top-secret" not in lines.text


@ensure_deferred
async def test_identity_is_the_same_on_all_replicas_and_another_for_another_version(
    reactor: EPollReactor, tmp_path: Path, origin: Origin, lines: Lines
) -> None:
    resource = Resource(ISO)
    identities = []
    image = remote_entry(origin.serve("/base.iso", resource))
    for number in range(3):
        resource.etag = '"2"' if number == 2 else '"1"'
        replica = RemoteCatalogs(reactor, tmp_path / str(number))
        catalog = replica.start(image)
        await lines.until(image.file_name, BaseImageState.READY)
        identities.append(found(catalog).sha256)
        await catalog.stop()
    first, second, changed = identities
    assert first == second != changed


@ensure_deferred
async def test_all_of_an_image_is_prefetched(remotes: RemoteCatalogs, origin: Origin, lines: Lines) -> None:
    image = remote_entry(origin.serve("/base.iso", Resource(ISO)))
    catalog = remotes.start(image, prefetch="all")
    await lines.until(image.file_name, BaseImageState.READY)
    (lifecycle,) = catalog._lifecycles
    for prefetch in lifecycle._background:  # type: ignore[attr-defined]
        await prefetch
    assert rendered(catalog)["bytes_done"] == len(ISO)


@ensure_deferred
async def test_prefetch_that_failed_is_tried_again(
    remotes: RemoteCatalogs,
    origin: Origin,
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
    reactor: EPollReactor,
) -> None:
    with monkeypatch.context() as faulty:
        faulty.setattr(RemoteImages, "fetch_all", failing_with(OriginFailed("status 500")))
        image = remote_entry(origin.serve("/base.iso", Resource(ISO)))
        catalog = remotes.start(image, prefetch="all")
        await lines.until(image.file_name, BaseImageState.READY)
        while "was not fetched as a whole" not in lines.text:
            await deferLater(reactor, 0.001)
    while rendered(catalog)["bytes_done"] != len(ISO):
        remotes.clock.advance(1)
        await deferLater(reactor, 0.001)
    await catalog.stop()
    assert remotes.clock.seconds() < CHECK_SECONDS, "not found by a check of the origin"
    assert not remotes.clock.getDelayedCalls()


@pytest.mark.parametrize(
    ("responder", "reason"),
    [
        (Resource(ISO, etag=""), "no strong validator"),
        (Resource(ISO, etag='W/"1"'), "no strong validator"),
        (Reply(ISO, headers={"ETag": '"1"'}), "does not serve ranges"),
        (Resource(b"no ISO" * 100_000), "not an ISO 9660 image"),
    ],
)
@ensure_deferred
async def test_origin_that_cannot_be_pinned_is_refused(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines, responder: Resource | Reply, reason: str
) -> None:
    image = remote_entry(origin.serve("/base.iso", responder))
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.REFUSED)
    assert reason in str(rendered(catalog)["reason"])
    with pytest.raises(BaseImageError, match="was refused"):
        found(catalog)


@ensure_deferred
async def test_digests_replace_the_validator(remotes: RemoteCatalogs, origin: Origin, lines: Lines) -> None:
    text = digest_list(ISO)
    image = remote_entry(
        origin.serve("/base.iso", resource := FaultyResource(Resource(ISO, etag=""))),
        sha256=hashlib.sha256(ISO).hexdigest(),
        digests_url=origin.serve("/digests", Reply(text)),
        digests_sha256=hashlib.sha256(text).hexdigest(),
    )
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    assert rendered(catalog)["verified"] == "digest"
    base = found(catalog)
    assert base.sha256 == hashlib.sha256(ISO).hexdigest()
    resource.fault = corrupt
    with pytest.raises(OriginFailed, match="does not have its digest"):
        base.file.sha256()
    assert "does not have its digest" in lines.text
    resource.fault = None
    for _ in range(THREADS):  # fetches ahead that began before may fail a read each
        with suppress(OriginFailed):
            base.file.sha256()
    assert base.file.sha256() == base.sha256


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (digest_list(ISO)[:-1] + b"x", "SHA-256 of its digest list is"),
        (digest_list(ISO[:-1]), "its digest list"),
    ],
)
@ensure_deferred
async def test_wrong_digest_list_is_refused(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines, text: bytes, reason: str
) -> None:
    known = digest_list(ISO) if text.endswith(b"x") else text
    image = remote_entry(
        origin.serve("/base.iso", Resource(ISO)),
        digests_url=origin.serve("/digests", Reply(text)),
        digests_sha256=hashlib.sha256(known).hexdigest(),
    )
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.REFUSED)
    assert reason in str(rendered(catalog)["reason"])


@ensure_deferred
async def test_check_finds_another_version(remotes: RemoteCatalogs, origin: Origin, lines: Lines) -> None:
    resource = Resource(ISO)
    image = remote_entry(origin.serve("/base.iso", resource))
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    before = found(catalog)
    here = before.file.read_at(0, 1000)
    resource.body, resource.etag = OTHER, '"2"'
    remotes.clock.advance(CHECK_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)
    after = found(catalog)
    assert after.sha256 != before.sha256
    assert after.file.sha256() == hashlib.sha256(OTHER).hexdigest()
    assert before.file.read_at(0, 1000) == here
    with pytest.raises(OriginFailed, match="another version"):
        before.file.sha256()


@ensure_deferred
async def test_fetch_finds_another_version(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines, reactor: EPollReactor
) -> None:
    resource = Resource(ISO)
    image = remote_entry(origin.serve("/base.iso", resource))
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    before = found(catalog)
    resource.body, resource.etag = OTHER, '"2"'
    with pytest.raises(OriginFailed, match="another version"):
        before.file.sha256()
    while found(catalog) is before:
        if remotes.clock.seconds() < 30:  # by then it is looked for, which takes threads as long as it may
            remotes.clock.advance(0.01)
        await deferLater(reactor, 0.001)
    assert found(catalog).file.sha256() == hashlib.sha256(OTHER).hexdigest()


@ensure_deferred
async def test_origin_that_is_away_degrades_what_is_served(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines
) -> None:
    image = remote_entry(origin.serve("/base.iso", Resource(ISO)))
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    origin.replies["/base.iso"] = [Reply(status=500)]
    remotes.clock.advance(CHECK_SECONDS)
    await lines.until(image.file_name, BaseImageState.DEGRADED)
    assert "status 500" in str(rendered(catalog)["reason"])
    assert found(catalog).file.read_at(0, 10) == ISO[:10]
    origin.replies["/base.iso"] = [Resource(ISO)]
    remotes.clock.advance(CHECK_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)


@ensure_deferred
async def test_origin_that_is_away_at_start_is_tried_again(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines
) -> None:
    image = remote_entry(origin.serve("/base.iso", Reply(status=503), Resource(ISO)))
    remotes.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    remotes.clock.advance(600)
    await lines.until(image.file_name, BaseImageState.READY)


@ensure_deferred
async def test_blocks_are_there_after_a_restart(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines
) -> None:
    image = remote_entry(origin.serve("/base.iso", Resource(ISO)))
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    found(catalog).file.sha256()
    await catalog.stop()
    before = len(origin.requests)
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    assert found(catalog).file.sha256() == hashlib.sha256(ISO).hexdigest()
    assert [request.headers["Range"] for request in origin.requests[before:]] == ["bytes=0-0"]


@ensure_deferred
async def test_replaced_version_is_found_after_a_restart_as_far_as_its_blocks_are_local(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines, reactor: EPollReactor
) -> None:
    resource = Resource(ISO)
    image = remote_entry(origin.serve("/base.iso", resource))
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    old = found(catalog).sha256
    local = found(catalog).file.read_at(0, 1000)
    resource.body, resource.etag = OTHER, '"2"'
    await catalog.stop()
    catalog = remotes.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    catalog.superseded.update()
    superseded = None
    while superseded is None:
        with suppress(Unavailable):
            superseded = catalog.find_by_digest(old, Kind.FULL_ISO)
            assert superseded is not None, lines.text
        await deferLater(reactor, 0.001)
    assert superseded.file.read_at(0, 1000) == local
    with pytest.raises(OriginFailed, match="another version"):
        superseded.file.sha256()
    assert found(catalog).file.sha256() == hashlib.sha256(OTHER).hexdigest()


@ensure_deferred
async def test_digest_list_must_be_signed(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[tuple[bytes, bytes]] = []

    def verify(_: KeyRing, content: bytes, signature: bytes, __: Interruption) -> None:
        verified.append((content, signature))
        if signature != b"good":
            raise BaseImageError("its OpenPGP signature is not valid")

    monkeypatch.setattr(KeyRing, "verify_bytes", verify)
    monkeypatch.setattr(ImageFetcher, "check_programs", lambda _: None)
    text = digest_list(ISO)
    image = remote_entry(
        origin.serve("/base.iso", Resource(ISO)),
        digests_url=origin.serve("/digests", Reply(text)),
        digests_sha256=hashlib.sha256(text).hexdigest(),
    )
    origin.serve("/digests.sig", Reply(b"bad"), Reply(b"good"))
    catalog = remotes.start(image, keys=KeyRing(b""))
    await lines.until(image.file_name, BaseImageState.REFUSED)
    assert "signature is not valid" in str(rendered(catalog)["reason"])
    remotes.clock.advance(CHECK_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)
    assert verified == [(text, b"bad"), (text, b"good")]


@ensure_deferred
async def test_other_process_on_the_cache_learns_of_the_change(
    remotes: RemoteCatalogs, origin: Origin, lines: Lines, reactor: EPollReactor
) -> None:
    resource = Resource(ISO)
    image = remote_entry(origin.serve("/base.iso", resource))
    catalogs = [remotes.start(image), remotes.start(image)]
    for _ in catalogs:
        await lines.until(image.file_name, BaseImageState.READY)
    first, second = map(found, catalogs)
    resource.body, resource.etag = OTHER, '"2"'
    with pytest.raises(OriginFailed, match="another version"):
        first.file.sha256()
    while found(catalogs[0]) is first or found(catalogs[1]) is second:
        remotes.clock.advance(0.01)
        await deferLater(reactor, 0.001)
    assert found(catalogs[0]).sha256 == found(catalogs[1]).sha256
