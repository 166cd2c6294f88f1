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

from image_service.catalog.derived.derived_files import derived_names
from image_service.catalog.download.downloader import download_file
from image_service.catalog.download.origin_client import OriginClient, trusted_authorities
from image_service.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.catalog.lifecycle.opening import open_base_image
from image_service.catalog.lifecycle.signature import KeyRing
from image_service.catalog.lifecycle.status import render_statuses
from image_service.catalog.storage.data_dir import DataDir
from image_service.catalog.storage.inventory import list_stored_images
from image_service.cli.command import EXIT_FAILURE, exit_on_signals, printable
from image_service.cli.progress import ProgressBar
from image_service.concurrency.interruption import Interruption
from image_service.errors import ImageServiceError, Unavailable, describe_os_error
from image_service.settings.settings import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from image_service.catalog.lifecycle.status import ImageStatus
    from image_service.images.base import BaseImage
    from image_service.settings.os_images import OsImage

MAX_RESPONSE_BYTES = 16 * 1024 * 1024
STALL_SECONDS = 10.0
_MIB = 1024 * 1024
_COLUMNS = ("version", "cpu_architecture", "type", "state", "progress", "sha256", "reason")


def run_list(options: argparse.Namespace) -> int:
    """Print the state of each image."""
    if options.url:
        client = OriginClient(trusted_authorities(options.ca_file), STALL_SECONDS)
        with client.fetch(f"{options.url.rstrip('/')}/images", {}, Interruption()) as response:
            document = response.read_all(MAX_RESPONSE_BYTES)
    else:
        settings = _settings()
        document = render_statuses(_stored_images(settings))
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
    keys = _keys(settings)

    def verify(entry: OsImage) -> str:
        path = entry.local_path or settings.storage.data_dir / entry.file_name
        with TemporaryDirectory() as scratch:  # a stored digest is not trusted
            return _close(open_base_image(entry, path, Path(scratch) / "sidecar", Interruption(), keys))

    entries = [
        attrs.evolve(status.entry, sha256=status.entry.sha256 or status.sha256)
        for status in _stored_images(settings)
        if status.size
    ]
    return _run_each(verify, entries, options.versions)


def run_fetch(options: argparse.Namespace) -> int:
    """Fetch the configured images that are absent."""
    exit_on_signals()
    settings = _settings()
    data_dir = DataDir(
        settings.storage.data_dir, settings.storage.retention_seconds, settings.storage.max_bytes
    )
    client = OriginClient.from_settings(settings.download, settings.source_urls)
    fetcher = ImageFetcher(data_dir, partial(download_file, client), _keys(settings))

    def fetch(entry: OsImage) -> str:
        with ProgressBar() as progress:
            fetcher.fetch_if_absent(entry, Interruption(), progress.report)
        return _close(fetcher.open(entry, Interruption()))

    data_dir.open()
    try:
        return _run_each(fetch, settings.catalog.images, options.versions)
    finally:
        data_dir.close()


def run_remove(options: argparse.Namespace) -> int:
    """Remove fetched images."""
    settings = _settings()
    data_dir = DataDir(settings.storage.data_dir)

    def remove(entry: OsImage) -> str:
        for name in (entry.file_name, *derived_names(entry.version, entry.cpu_architecture)):
            if not data_dir.remove_image(name):
                raise Unavailable(f"{name} not removed: not managed here, or in use")
        return "removed"

    return _run_each(remove, [status.entry for status in _stored_images(settings)], options.versions)


def _settings() -> Settings:
    # Standalone: the settings of assisted-service are not required.
    return Settings.from_environment(os.environ, standalone=True)


def _keys(settings: Settings) -> KeyRing | None:
    return KeyRing.read(settings.catalog.signing_keys) if settings.catalog.signing_keys else None


def _stored_images(settings: Settings) -> tuple[ImageStatus, ...]:
    return list_stored_images(settings.storage.data_dir, settings.catalog.images)


def _close(base: BaseImage) -> str:
    base.file.close()
    return f"SHA-256 {base.sha256}"


def _run_each(work: Callable[[OsImage], str], entries: Sequence[OsImage], versions: Sequence[str]) -> int:
    """Run `work` on each image, or those of some versions; print its result or failure; return a status."""
    failed = sorted(set(versions) - {entry.version for entry in entries})
    for version in failed:
        print(f"{printable(version)}: there is no such image", file=sys.stderr)  # noqa: T201
    for entry in entries:
        if versions and entry.version not in versions:
            continue
        try:
            result = work(entry)
        except (ImageServiceError, OSError) as error:
            reason = error.detail if isinstance(error, ImageServiceError) else describe_os_error(error)
            print(f"{entry.file_name}: {printable(reason)}", file=sys.stderr)  # noqa: T201
            failed.append(entry.version)
        else:
            print(f"{entry.file_name}: {result}")  # noqa: T201
    return EXIT_FAILURE if failed else 0


def _rows(document: bytes) -> list[dict[str, str]]:
    """Return the cells of each image in the table, by column."""
    rows = []
    try:
        for image in json.loads(document)["images"]:
            done, total = int(image["bytes_done"]), int(image["bytes_total"] or 0)
            share = f"{done * 100 // total}% of {total / _MIB:.1f} MiB" if total else f"{done / _MIB:.1f} MiB"
            row = {column: str(image[column] or "") for column in _COLUMNS if column != "progress"}
            rows.append({**row, "progress": share, "sha256": row["sha256"][:12]})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Unavailable("the response is not that of an image service") from None
    return rows


VERBS = {"list": run_list, "verify": run_verify, "fetch": run_fetch, "remove": run_remove}
