from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import fail
from twisted.internet.task import Clock, deferLater
from twisted.logger import LogLevel, formatEvent

from image_service.core.errors import BaseImageError, ImageServiceError, Unavailable, UnknownBaseImage
from image_service.core.images.reference import Kind
from image_service.server.catalog.catalog import Catalog
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.lifecycle.lifecycle import (
    RECHECK_AFTER_SECONDS,
    REFUSED_RETRY_AFTER_SECONDS,
)
from image_service.server.catalog.lifecycle.signature import KeyRing
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.catalog.storage.data_dir import DataDir
from tests.core.formats.filesystems.iso_builder import build_live_iso, build_other_iso, live_files
from tests.pytwisted import ensure_deferred
from tests.server.catalog.catalogs import (
    ISO,
    NOWHERE,
    RETRY_SECONDS,
    SHA256,
    Catalogs,
    customized,
    digest_of,
    entry,
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
    from tests.conftest import LoggedFailures
    from tests.server.catalog.lines import Lines

# Sources.


@ensure_deferred
async def test_local_file_is_served_in_place(catalogs: Catalogs, lines: Lines, tmp_path: Path) -> None:
    path = write(tmp_path / "some where" / "base.iso")
    image = entry(path.as_uri())
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)

    base = catalog.find_base_image("9.6.1-0", "x86_64", Kind.FULL_ISO)

    assert (base.file.path, base.file.size) == (str(path), len(ISO))
    assert os.pread(base.file.descriptor, len(ISO), 0) == ISO
    assert (base.sha256, base.version, base.needs_nmstate) == (SHA256, "9.6.1-0", True)
    assert base.architecture == "x86_64"
    assert not base.disconnected
    assert base.coreos.ignition.length == 262144
    assert catalogs.names() == {f"{image.file_name}.json"}


@ensure_deferred
async def test_file_of_the_right_name_is_used(catalogs: Catalogs, lines: Lines) -> None:
    image = entry(NOWHERE)
    write(catalogs.data_dir / image.file_name)
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)

    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256
    assert "downloading" not in lines.text


@ensure_deferred
async def test_image_is_fetched_once(catalogs: Catalogs, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO)))
    for _ in range(2):
        catalog = catalogs.start(image)
        await lines.until(image.file_name, BaseImageState.READY)
        assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256
        await catalog.stop()

    assert (catalogs.data_dir / image.file_name).read_bytes() == ISO
    assert catalogs.names() == {image.file_name, f"{image.file_name}.json"}
    assert len(origin.requests) == 1


@ensure_deferred
async def test_broken_download_is_retried(catalogs: Catalogs, lines: Lines, origin: Origin) -> None:
    broken = Reply(ISO[:-1], promised=len(ISO))
    image = entry(origin.serve("/base.iso", broken, Reply(ISO)))
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)

    assert catalogs.names() == partial_names(image)
    catalogs.clock.advance(RETRY_SECONDS - 1.5)
    with pytest.raises(Unavailable, match=f"failed: .*sent {len(ISO) - 1} of {len(ISO)} bytes") as refusal:
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    assert refusal.value.retry_after_seconds == 2
    assert len(origin.requests) == 1

    catalogs.clock.advance(1.5)
    await lines.until(image.file_name, BaseImageState.READY)
    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256


@ensure_deferred
async def test_absent_local_file_is_retried(catalogs: Catalogs, lines: Lines, tmp_path: Path) -> None:
    image = entry((tmp_path / "late.iso").as_uri())
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    with pytest.raises(Unavailable, match="No such file"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)

    write(tmp_path / "late.iso")
    catalogs.clock.advance(RETRY_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)


@pytest.mark.parametrize(
    ("content", "text"), [(None, "is failed"), (b"<html>", "was refused")], ids=["absent", "not an ISO"]
)
@ensure_deferred
async def test_reason_may_be_kept_from_clients(
    catalogs: Catalogs, lines: Lines, tmp_path: Path, content: bytes | None, text: str
) -> None:
    if content is not None:
        write(tmp_path / "bad.iso", content)
    image = entry((tmp_path / "bad.iso").as_uri())
    catalog = catalogs.start(image, tells_reasons=False)
    await lines.until(image.file_name, BaseImageState.FAILED if content is None else BaseImageState.REFUSED)
    with pytest.raises(ImageServiceError) as error:
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    assert error.value.detail == f"{image.file_name} {text}"


# Refusal.


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>not found</html>", "was refused"),
        (ISO[:-2048], "was refused"),
        (build_other_iso("debian-12"), "debian-12"),
        (customized(), "is already customized"),
    ],
    ids=["not an ISO", "truncated", "not CoreOS", "customized"],
)
@ensure_deferred
async def test_file_that_is_no_pristine_live_iso_is_refused(
    catalogs: Catalogs, lines: Lines, tmp_path: Path, content: bytes, reason: str
) -> None:
    before = open_files()
    bad = entry(write(tmp_path / "bad.iso", content).as_uri(), version="1")
    good = entry(write(tmp_path / "good.iso").as_uri(), version="2")
    catalog = catalogs.start(bad, good)
    await lines.until(bad.file_name, BaseImageState.REFUSED)
    await lines.until(good.file_name, BaseImageState.READY)

    with pytest.raises(BaseImageError, match=reason) as refusal:
        catalog.find_base_image("1", "x86_64", Kind.FULL_ISO)
    assert refusal.value.retry_after_seconds
    assert f"{tmp_path / 'bad.iso'}: " in lines.text
    assert catalog.find_base_image("2", "x86_64", Kind.FULL_ISO).sha256 == SHA256
    assert catalog.is_ready
    assert [status.state for status in catalog.statuses()] == [BaseImageState.REFUSED, BaseImageState.READY]
    assert [status.retry_seconds for status in catalog.statuses()] == [None, None]  # stays refused
    assert (tmp_path / "bad.iso").exists()
    assert open_files() == before + 2  # the good one, and the lock of this process's presence


@ensure_deferred
async def test_customized_disconnected_iso_is_served(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    path = write(tmp_path / "ove.iso", customized())
    image = entry(path.as_uri(), image_type="disconnected-iso")
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)

    assert catalog.find_base_image("4.19", "x86_64", Kind.DISCONNECTED_ISO).disconnected
    assert "is already customized; its customization will be overwritten" in lines.text


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
@ensure_deferred
async def test_directory_or_fifo_is_refused(
    catalogs: Catalogs, lines: Lines, tmp_path: Path, make: object
) -> None:
    assert callable(make)
    make(tmp_path / "thing.iso")
    image = entry((tmp_path / "thing.iso").as_uri())
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.REFUSED)

    with pytest.raises(BaseImageError, match="not a regular file"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)


@ensure_deferred
async def test_invalid_download_is_set_aside(catalogs: Catalogs, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", Reply(b"please log in")))
    catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)

    assert catalogs.names() == {f"{image.file_name}.refused"}


@ensure_deferred
async def test_invalid_download_is_fetched_again_after_an_hour(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(b"please log in"), Reply(ISO)))
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    (status,) = catalog.statuses()
    assert status.retry_seconds == pytest.approx(REFUSED_RETRY_AFTER_SECONDS)
    catalogs.clock.advance(REFUSED_RETRY_AFTER_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)


@ensure_deferred
async def test_unexpected_error_refuses_one_image_only(
    reactor: EPollReactor, lines: Lines, tmp_path: Path, logged_failures: LoggedFailures
) -> None:
    def fail(url: str, partial: Path, interruption: Interruption, progress: ReportProgress, _: str) -> None:
        raise RuntimeError(url, partial, interruption, progress)

    good = entry(write(tmp_path / "good.iso").as_uri(), version="good")
    bad = entry(NOWHERE, version="bad")
    catalog = Catalog(reactor, Clock(), [bad, good], ImageFetcher(DataDir(tmp_path), fail))
    catalog.start()
    await lines.until(bad.file_name, BaseImageState.REFUSED)
    await lines.until(good.file_name, BaseImageState.READY)

    assert len(logged_failures.flush(RuntimeError)) == 1
    await catalog.stop()


# Sidecars.


@ensure_deferred
async def test_digest_is_computed_once(catalogs: Catalogs, lines: Lines, tmp_path: Path) -> None:
    path = write(tmp_path / "base.iso")
    image = entry(path.as_uri())
    sidecar = catalogs.data_dir / f"{image.file_name}.json"
    assert await digest_of(catalogs, lines, image) == SHA256

    sidecar.write_text(sidecar.read_text().replace(SHA256, "ab" * 32))
    assert await digest_of(catalogs, lines, image) == "ab" * 32  # so it was not taken again

    os.utime(path, ns=(0, 1))
    assert await digest_of(catalogs, lines, image) == SHA256


@ensure_deferred
async def test_download_that_was_changed_is_told_at_each_start(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO)))
    assert await digest_of(catalogs, lines, image) == SHA256
    path = catalogs.data_dir / image.file_name
    path.write_bytes(ISO[:-100] + b"x" + ISO[-99:])
    changed = hashlib.sha256(path.read_bytes()).hexdigest()
    for starts in (1, 2):
        assert await digest_of(catalogs, lines, image) == changed
        assert lines.text.count(f"its SHA-256 was {SHA256} and is {changed}; ") == starts


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"sha256": 1}', b"{}"])
@ensure_deferred
async def test_damaged_sidecar_is_replaced(
    catalogs: Catalogs, lines: Lines, tmp_path: Path, content: bytes
) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    sidecar = write(catalogs.data_dir / f"{image.file_name}.json", content)
    assert await digest_of(catalogs, lines, image) == SHA256
    assert json.loads(sidecar.read_bytes())["sha256"] == SHA256


@ensure_deferred
async def test_image_is_served_if_the_sidecar_cannot_be_written(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    (catalogs.data_dir / f"{image.file_name}.json").mkdir(parents=True)
    assert await digest_of(catalogs, lines, image) == SHA256


# Status.


@ensure_deferred
async def test_status_has_the_progress_of_a_download(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO[:4096], promised=len(ISO), hold=True)))
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.DOWNLOADING)
    origin.holding.wait()
    while catalog.statuses()[0].bytes_done < 4096:
        await deferLater(catalogs.reactor, 0.001)

    (status,) = catalog.statuses()
    assert (status.bytes_done, status.bytes_total) == (4096, len(ISO))
    assert (status.size, status.sha256, status.retry_seconds) == (None, None, None)
    with pytest.raises(Unavailable, match=f"is downloading: 4096 of {len(ISO)} bytes$"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)


@ensure_deferred
async def test_status_of_a_ready_image_has_size_and_digest(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    (status,) = catalog.statuses()
    assert (status.bytes_done, status.bytes_total, status.size) == (len(ISO),) * 3
    assert (status.sha256, status.reason, status.image) == (SHA256, "", image.file_name)


@ensure_deferred
async def test_verified_image_is_degraded_without_gpgv(
    catalogs: Catalogs, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    keys, signature = KeyRing(b"keys"), write(tmp_path / "base.iso.sig", b"signature")
    await digest_of(catalogs, lines, image)
    sidecar = catalogs.data_dir / f"{image.file_name}.json"
    proof = {"signature_sha256": keys.proof(SHA256, signature.read_bytes())}
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | proof))
    monkeypatch.setenv("PATH", str(tmp_path))
    for program in ("prlimit", "setpriv"):  # which start it in a sandbox
        (tmp_path / program).touch(0o755)

    catalog = catalogs.start(image, keys=keys)
    await lines.until(image.file_name, BaseImageState.DEGRADED)
    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256
    assert catalog.statuses()[0].reason.startswith("gpgv is not installed; install the package gpgv")
    (tmp_path / "gpgv").touch(0o755)
    catalogs.clock.advance(RETRY_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)


# Retries and rechecks.


@ensure_deferred
async def test_delay_doubles_with_each_failure(catalogs: Catalogs, lines: Lines, origin: Origin) -> None:
    image = entry(origin.serve("/base.iso", *[Reply(status=500)] * 4, Reply(ISO), Reply(status=500)))
    catalog = catalogs.start(image)
    for times in (1, 2, 4, 4):
        await lines.until(image.file_name, BaseImageState.FAILED)
        assert catalog.statuses()[0].retry_seconds == times * RETRY_SECONDS
        catalogs.clock.advance(times * RETRY_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)
    assert catalog.statuses()[0].retry_seconds is None


@ensure_deferred
async def test_failure_is_logged_with_url_and_next_attempt_until_its_reason_changes(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    replies = [Reply(status=500)] * 3 + [Reply(status=404), Reply(ISO)]
    image = entry(origin.serve("/base.iso", *replies) + "?key=top-secret")
    catalogs.start(image)
    for seconds in (60, 120, 240, 240):
        await lines.until(image.file_name, BaseImageState.FAILED)
        catalogs.clock.advance(seconds)
    await lines.until(image.file_name, BaseImageState.READY)
    shown = [
        formatEvent(event)
        for event in lines.events
        if event.get("state") and event["log_level"] > LogLevel.debug
    ]
    prefix = f"base image {image.file_name} is"
    url = origin.url("/base.iso")
    assert shown == [
        f"{prefix} downloading",
        f"{prefix} failed: cannot fetch {url}: answered with status 500; next attempt in 60 s",
        f"{prefix} failed: cannot fetch {url}: answered with status 404; next attempt in 240 s",
        f"{prefix} ready",
    ]


@ensure_deferred
async def test_invalid_download_is_told_with_its_url(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(b"<html>please log in" * 4096)) + "?key=top-secret")
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    told = f"the file from {origin.url('/base.iso')} is refused: not an ISO 9660 image: "
    assert catalog.statuses()[0].reason.startswith(told)


@ensure_deferred
async def test_local_file_that_is_absent_is_named_by_its_path(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    image = entry((tmp_path / "live.iso").as_uri())
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    assert catalog.statuses()[0].reason == f"{tmp_path / 'live.iso'}: No such file or directory"


@ensure_deferred
async def test_retry_after_of_the_origin_is_respected(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(status=429, headers={"Retry-After": "1000"}), Reply(ISO)))
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    with pytest.raises(Unavailable, match=r"is failed: .*429") as refusal:
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    assert refusal.value.retry_after_seconds == 1000
    catalogs.clock.advance(999)
    assert len(origin.requests) == 1
    catalogs.clock.advance(1)
    await lines.until(image.file_name, BaseImageState.READY)


@ensure_deferred
async def test_download_that_is_invalid_at_the_next_start_is_fetched_again(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    image = entry(origin.serve("/base.iso", Reply(ISO)))
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    await catalog.stop()
    path = catalogs.data_dir / image.file_name
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_bytes(bytes(len(ISO)))
    os.utime(path, ns=times)

    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    assert path.read_bytes() == ISO
    assert catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256 == SHA256
    assert len(origin.requests) == 2


@ensure_deferred
async def test_recheck_has_a_corrupt_download_fetched_again(
    catalogs: Catalogs, lines: Lines, origin: Origin
) -> None:
    content = build_live_iso({**live_files(), "images/pxeboot/initrd.img": bytes(4 * 2**20)})
    image = entry(origin.serve("/base.iso", Reply(content)))
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    catalogs.clock.advance(RECHECK_AFTER_SECONDS)
    await catalog.stop()
    path = catalogs.data_dir / image.file_name
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_bytes(content[:-2_000_000] + b"rot" + content[-1_999_997:])
    os.utime(path, ns=times)

    gone: list[BaseImage] = []
    catalog = catalogs.start(image, on_superseded=gone.append)
    await lines.until(image.file_name, BaseImageState.READY)
    rotten = catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    catalogs.clock.advance(RECHECK_AFTER_SECONDS)
    await lines.until(image.file_name, BaseImageState.FAILED)
    with pytest.raises(Unavailable, match="content changed"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    assert gone == [rotten]
    catalogs.clock.advance(RETRY_SECONDS)
    await lines.until(image.file_name, BaseImageState.READY)
    assert path.read_bytes() == content
    assert len(origin.requests) == 2


@ensure_deferred
async def test_recheck_of_a_degraded_image_ends_its_retry(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    image = entry(write(tmp_path / "base.iso").as_uri())
    sidecar = catalogs.data_dir / f"{image.file_name}.json"
    await digest_of(catalogs, lines, image)
    sidecar.write_text(sidecar.read_text().replace(SHA256, "ab" * 32))
    catalog = catalogs.start(
        image, derive=lambda _: fail(Unavailable("no xorriso", retry_after_seconds=3600))
    )
    await lines.until(image.file_name, BaseImageState.DEGRADED)
    catalogs.clock.advance(RECHECK_AFTER_SECONDS)
    await lines.until(image.file_name, BaseImageState.REFUSED)
    assert catalog.statuses()[0].retry_seconds is None
    assert catalogs.clock.getDelayedCalls() == []


@ensure_deferred
async def test_recheck_refuses_a_corrupt_local_file_and_leaves_it(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    path = write(tmp_path / "base.iso")
    image = entry(path.as_uri())
    sidecar = catalogs.data_dir / f"{image.file_name}.json"
    await digest_of(catalogs, lines, image)
    sidecar.write_text(sidecar.read_text().replace(SHA256, "ab" * 32))
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    catalogs.clock.advance(RECHECK_AFTER_SECONDS)
    await lines.until(image.file_name, BaseImageState.REFUSED)
    with pytest.raises(BaseImageError, match="content changed"):
        catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)
    assert path.read_bytes() == ISO


@ensure_deferred
async def test_attempt_that_is_due_later_is_begun_at_once(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    image = entry((tmp_path / "late.iso").as_uri())
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.FAILED)
    (failed,) = catalog.statuses()
    write(tmp_path / "late.iso")
    assert catalog.retry_now("9.6.1-0", "x86_64", Kind.FULL_ISO)
    await lines.until(image.file_name, BaseImageState.READY)
    (ready,) = catalog.statuses()
    assert failed.since is not None
    assert ready.since is not None
    assert ready.since > failed.since
    assert not catalog.retry_now("9.6.1-0", "x86_64", Kind.FULL_ISO)  # there is nothing to attempt
    with pytest.raises(UnknownBaseImage):
        catalog.retry_now("1", "x86_64", Kind.FULL_ISO)


@ensure_deferred
async def test_refused_file_that_was_replaced_is_attempted_again(
    catalogs: Catalogs, lines: Lines, tmp_path: Path
) -> None:
    image = entry(write(tmp_path / "base.iso", b"<html>").as_uri())
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.REFUSED)
    write(tmp_path / "base.iso")
    assert catalog.retry_now("9.6.1-0", "x86_64", Kind.FULL_ISO)
    assert not catalog.retry_now("9.6.1-0", "x86_64", Kind.FULL_ISO)  # one is in progress
    await lines.until(image.file_name, BaseImageState.READY)


@ensure_deferred
@pytest.mark.parametrize(("logs_progress", "level"), [(True, "info"), (False, "debug")])
async def test_one_process_logs_progress_and_each_logs_failures(
    catalogs: Catalogs,
    lines: Lines,
    tmp_path: Path,
    level: str,
    *,
    logs_progress: bool,
) -> None:
    good, absent = entry(write(tmp_path / "base.iso").as_uri()), entry("file:///absent.iso", version="10")
    catalogs.start(good, absent, logs_progress=logs_progress)
    await lines.until(good.file_name, BaseImageState.READY)
    await lines.until(absent.file_name, BaseImageState.FAILED)
    states = [event for event in lines.events if "state" in event]
    levels = {(event["image"], event["state"]): event["log_level"].name for event in states}
    assert levels[good.file_name, "ready"] == level
    assert levels[absent.file_name, "failed"] == "warn"
