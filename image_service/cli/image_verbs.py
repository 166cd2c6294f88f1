"""The verbs of ``image-service images``."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from image_service.cli.shared.admin import DEFAULT_ADMIN
from image_service.common.command_line.messages import tell
from image_service.common.command_line.parser import EXIT_FAILURE, exit_on_signals, printable
from image_service.common.command_line.progress_bar import ProgressBar
from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import (
    BaseImageError,
    ConfigurationError,
    ImageServiceError,
    StreamMetadataInvalid,
    Unavailable,
    describe_os_error,
)
from image_service.server.admin.client import AdminClient
from image_service.server.catalog.derived.derived_files import derived_names
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.lifecycle.inventory import list_stored_images
from image_service.server.catalog.lifecycle.opening import open_base_image
from image_service.server.catalog.lifecycle.signature import KeyRing
from image_service.server.catalog.lifecycle.status import render_statuses
from image_service.server.catalog.storage.base_records import BaseRecords
from image_service.server.catalog.storage.data_dir import DataDir
from image_service.server.catalog.storage.digest import stored_sha256
from image_service.server.streams.stream import load_releases
from image_service.server.streams.stream_state import fetch_document, load_state, save_state, state_path
from image_service.settings.settings import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from image_service.server.catalog.lifecycle.status import ImageStatus
    from image_service.settings.os_images import OsImage
    from image_service.settings.stream_sources import StreamSource

_MIB = 1024 * 1024
_COLUMNS = ("version", "cpu_architecture", "type", "state", "progress", "sha256", "retry_at", "reason")


def run_list(options: argparse.Namespace) -> int:
    """Print the state of each image."""
    if options.admin:
        document = AdminClient(options.admin, options.token_file, options.ca_file).get("/images")
    else:
        settings = _settings()
        statuses = _stored_images(settings)
        if not statuses:
            tell(
                f"there is no base image in {settings.storage.data_dir}, and none is configured; --admin"
                f" {DEFAULT_ADMIN} lists those of a running service",
                "info",
            )
        document = render_statuses(statuses)
    if options.json:
        sys.stdout.write(document.decode())
        return 0
    lines = [[column.upper().replace("_", " ") for column in _COLUMNS]]
    lines += [[printable(row[column]) for column in _COLUMNS] for row in _rows(document)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for cells in lines:
        print("  ".join(map(str.ljust, cells, widths)).rstrip())  # noqa: T201
    return 0


def run_verify(options: argparse.Namespace) -> int:
    """Read every byte of the stored images, and change nothing."""
    settings = _settings()
    keys, directory = _keys(settings), settings.storage.data_dir
    of_streams = {
        release.entry.file_name: release for release in load_releases(directory, settings.streams.sources)
    }

    def find_known_digest(entry: OsImage) -> tuple[str | None, str]:
        """Return the SHA-256 that is expected, and who says so."""
        image = entry.file_name
        if image in of_streams:
            stream, digest = of_streams[image].stream, of_streams[image].entry.sha256
            if entry.sha256 in {None, digest}:
                return digest, f"the metadata of the stream {stream}"
        if entry.sha256:
            return entry.sha256, "OS_IMAGES"
        if recorded := DataDir(directory).recorded_sha256(image):
            return recorded, "the record of its download"
        return stored_sha256(directory / f"{image}.json"), "the record of its last verification"

    def verify(entry: OsImage) -> str:
        path = entry.local_path or directory / entry.file_name
        known, source = find_known_digest(entry)
        unchecked = attrs.evolve(entry, sha256=None)
        with TemporaryDirectory() as scratch:  # a stored digest is not trusted
            base = open_base_image(unchecked, path, Path(scratch) / "sidecar", Interruption(), keys)
        base.file.close()
        if known is None:
            return f"SHA-256 {base.sha256}, compared with nothing: no digest is known"
        if known != base.sha256:
            raise BaseImageError(f"its SHA-256 is {base.sha256}; it must be {known} by {source}")
        return f"SHA-256 {base.sha256}, as in {source}"

    entries = [status.entry for status in _stored_images(settings) if status.size]
    if not (entries or options.versions):
        raise Unavailable(f"nothing to verify: there is no base image in {directory}")
    return _run_each(verify, entries, options.versions)


def run_fetch(options: argparse.Namespace) -> int:
    """Fetch the images of OS_IMAGES and COREOS_STREAMS that are absent."""
    exit_on_signals()
    settings = _settings()
    if not (settings.catalog.isos or settings.streams.sources):
        raise ConfigurationError("nothing to fetch: neither OS_IMAGES nor COREOS_STREAMS is set")
    data_dir = DataDir(
        settings.storage.data_dir, settings.storage.retention_seconds, settings.storage.max_bytes
    )
    client = OriginClient.from_settings(
        settings.download, settings.source_urls, settings.proxies, settings.registries
    )
    fetcher = ImageFetcher(data_dir, partial(download_file, client), _keys(settings), BaseRecords(data_dir))

    def fetch(entry: OsImage) -> str:
        if entry.remote:
            return "stays at its origin"
        with ProgressBar() as progress:
            fetcher.fetch_if_absent(entry, Interruption(), progress.report)
        base = fetcher.open(entry, Interruption())
        base.file.close()
        recorded = data_dir.recorded_sha256(entry.file_name)
        if entry.sha256 is None and recorded not in {None, base.sha256}:
            raise BaseImageError(
                f"its SHA-256 is {base.sha256}, it was {recorded} when it was downloaded; remove it with"
                " --force to fetch it again"
            )
        return f"SHA-256 {base.sha256}"

    data_dir.open()
    try:
        refreshed = [_refresh_stream(source, data_dir.path, client) for source in settings.streams.sources]
        status = _run_each(fetch, _configured_images(settings), options.versions)
        return status if all(refreshed) else EXIT_FAILURE
    finally:
        data_dir.close()


def run_remove(options: argparse.Namespace) -> int:
    """Remove images, and the files derived from them."""
    settings = _settings()
    data_dir = DataDir(settings.storage.data_dir)

    def remove(entry: OsImage) -> str:
        for name in (entry.file_name, *derived_names(entry.version, entry.cpu_architecture)):
            data_dir.remove_image(name, force=options.force)
        return (
            f"removed, except {entry.local_path}, which is used in place" if entry.local_path else "removed"
        )

    return _run_each(remove, [status.entry for status in _stored_images(settings)], options.versions)


def _settings() -> Settings:
    # Standalone: the settings of assisted-service are not required; a service's environment may have them.
    environ = {name: value for name, value in os.environ.items() if name != "ASSISTED_SERVICE_HOST"}
    return Settings.from_environment(environ, standalone=True)


def _keys(settings: Settings) -> KeyRing | None:
    return KeyRing.read(settings.catalog.signing_keys) if settings.catalog.signing_keys else None


def _configured_images(settings: Settings) -> tuple[OsImage, ...]:
    """Return the images of OS_IMAGES, and the releases of streams that are known; one per file."""
    releases = load_releases(settings.storage.data_dir, settings.streams.sources)
    entries = (*settings.catalog.isos, *(release.entry for release in releases))
    return tuple({entry.file_name: entry for entry in reversed(entries)}.values())[::-1]


def _stored_images(settings: Settings) -> tuple[ImageStatus, ...]:
    return list_stored_images(settings.storage.data_dir, _configured_images(settings))


def _refresh_stream(source: StreamSource, directory: Path, client: OriginClient) -> bool:
    """Fetch and store the metadata of a stream, as the service does; return False if that failed."""
    path = state_path(directory, source)
    state = load_state(path, source)
    try:
        fetched = fetch_document(source, state, client, Interruption())
    except (Unavailable, StreamMetadataInvalid) as error:
        tell(f"stream {source.stream}: {printable(error.detail)}")
        return False
    if fetched:
        save_state(path, state.with_offer(source, *fetched))
    return True


def _run_each(work: Callable[[OsImage], str], entries: Sequence[OsImage], versions: Sequence[str]) -> int:
    """Run `work` on each image, or those of some versions; print its result or failure; return a status."""
    failed = sorted(set(versions) - {entry.version for entry in entries})
    for version in failed:
        tell(f"{printable(version)}: there is no such image")
    for entry in entries:
        if versions and entry.version not in versions:
            continue
        try:
            result = work(entry)
        except (ImageServiceError, OSError) as error:
            reason = error.detail if isinstance(error, ImageServiceError) else describe_os_error(error)
            tell(f"{entry.file_name}: {printable(reason)}")
            failed.append(entry.version)
        else:
            print(f"{entry.file_name}: {result}")  # noqa: T201
    return EXIT_FAILURE if failed else 0


def _rows(document: bytes) -> list[dict[str, str]]:
    """Return the cells of each image in the table, by column."""
    rows = []
    try:
        answer = json.loads(document)
        superseded = [
            {
                **image,
                "state": "superseded",
                "bytes_done": image["size"],
                "bytes_total": image["size"],
                "retry_at": None,
                "reason": f"kept for {image['mounts']} mounts",
            }
            for image in answer.get("superseded", ())  # which older services do not send
        ]
        for image in [*answer["images"], *superseded]:
            done, total = int(image["bytes_done"]), int(image["bytes_total"] or 0)
            share = f"{done * 100 // total}% of {total / _MIB:.1f} MiB" if total else f"{done / _MIB:.1f} MiB"
            row = {column: str(image[column] or "") for column in _COLUMNS if column != "progress"}
            rows.append({**row, "progress": share, "sha256": row["sha256"][:12]})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Unavailable("the response is not that of an image service") from None
    return rows


VERBS = {"list": run_list, "verify": run_verify, "fetch": run_fetch, "remove": run_remove}
