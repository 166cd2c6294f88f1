"""What ``image-service images`` does."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import attrs

from image_service.catalog.derived.derived_files import derived_names
from image_service.catalog.download.downloader import Downloader
from image_service.catalog.download.origin_client import OriginClient, trusted_authorities
from image_service.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.catalog.lifecycle.opening import open_base_image
from image_service.catalog.lifecycle.signature import KeyRing
from image_service.catalog.lifecycle.status import render_statuses
from image_service.catalog.storage.data_dir import DataDir
from image_service.catalog.storage.inventory import list_stored_images
from image_service.cli.command import end_in_order
from image_service.cli.progress import Progress
from image_service.cli.table import printable, render_table
from image_service.concurrency.interruption import Interruption
from image_service.errors import ImageServiceError, Unavailable
from image_service.settings.settings import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from image_service.catalog.lifecycle.status import ImageStatus
    from image_service.images.base import BaseImage
    from image_service.settings.os_images import OsImage

EXIT_FAILURE = 1
MAX_ANSWER_BYTES = 16 * 1024 * 1024
STALL_SECONDS = 10.0
_MIB = 1024 * 1024
_COLUMNS = ("version", "cpu_architecture", "type", "state", "progress", "sha256", "reason")


def run_list(options: argparse.Namespace) -> int:
    """Tell how far each image is.

    Args:
        options: as declared.

    Returns:
        exit status.

    Raises:
        ImageServiceError: the service does not answer, or the environment makes no configuration.
    """
    if options.url:
        document = _ask(options.url, options.ca_file)
    else:
        settings = _settings()
        document = render_statuses(_holdings(settings))
    if options.json:
        sys.stdout.write(document.decode())
        return 0
    sys.stdout.write(render_table(_COLUMNS, _rows(document)))
    return 0


def run_verify(options: argparse.Namespace) -> int:
    """Read all of what is there, and change nothing.

    Args:
        options: as declared.

    Returns:
        exit status: whether all is as it should be.
    """
    settings = _settings()
    keys = _keys(settings)

    def verify(entry: OsImage) -> str:
        path = entry.local_path or settings.storage.data_dir / entry.file_name
        with TemporaryDirectory() as scratch:  # what is remembered of it is not believed
            return _close(open_base_image(entry, path, Path(scratch) / "sidecar", Interruption(), keys))

    held = [status for status in _holdings(settings) if status.size]
    known = [attrs.evolve(each.entry, sha256=each.entry.sha256 or each.sha256) for each in held]
    return _do(verify, known, options.versions)


def run_fetch(options: argparse.Namespace) -> int:
    """Fetch what is configured and not there.

    Args:
        options: as declared.

    Returns:
        exit status: whether all is there.
    """
    end_in_order()
    settings = _settings()
    data_dir = DataDir(
        settings.storage.data_dir, settings.storage.retention_seconds, settings.storage.max_bytes
    )
    fetch = Downloader(OriginClient.from_settings(settings.download, settings.source_urls)).download
    fetcher = ImageFetcher(data_dir, fetch, Interruption(), _keys(settings))

    def obtain(entry: OsImage) -> str:
        with ExitStack() as shown:
            fetcher.fetch_if_absent(entry, _Transfer(shown))
        return _close(fetcher.open(entry))

    data_dir.open()
    try:
        return _do(obtain, settings.catalog.images, options.versions)
    finally:
        data_dir.close()


def run_remove(options: argparse.Namespace) -> int:
    """Remove what was fetched here.

    Args:
        options: as declared.

    Returns:
        exit status: whether all of it is gone.
    """
    settings = _settings()
    data_dir = DataDir(settings.storage.data_dir)

    def remove(entry: OsImage) -> str:
        for name in (entry.file_name, *derived_names(entry.version, entry.cpu_architecture)):
            if not data_dir.remove_image(name):
                raise Unavailable(f"{name} stays: it was not fetched here, or somebody is at work on it")
        return "removed"

    return _do(remove, [status.entry for status in _holdings(settings)], options.versions)


def _settings() -> Settings:
    # As if standing alone: nobody is asked about infra-envs.
    return Settings.from_environment(os.environ, standalone=True)


def _keys(settings: Settings) -> KeyRing | None:
    return KeyRing.read(settings.catalog.signing_keys) if settings.catalog.signing_keys else None


def _holdings(settings: Settings) -> tuple[ImageStatus, ...]:
    return list_stored_images(settings.storage.data_dir, settings.catalog.images)


def _close(base: BaseImage) -> str:
    os.close(base.file.descriptor)
    return f"SHA-256 {base.sha256}"


def _do(work: Callable[[OsImage], str], entries: Sequence[OsImage], versions: Sequence[str]) -> int:
    """Do something with each image, or with those of some versions; one that fails keeps no other from it."""
    absent = set(versions) - {entry.version for entry in entries}
    for version in sorted(absent):
        print(f"{printable(version)}: there is no such image", file=sys.stderr)  # noqa: T201
    done = [_is_done(work, entry) for entry in entries if not versions or entry.version in versions]
    return 0 if all(done) and not absent else EXIT_FAILURE


def _is_done(work: Callable[[OsImage], str], entry: OsImage) -> bool:
    try:
        told = work(entry)
    except (ImageServiceError, OSError) as error:
        reason = error.detail if isinstance(error, ImageServiceError) else error.strerror or str(error)
        print(f"{entry.file_name}: {printable(reason)}", file=sys.stderr)  # noqa: T201
        return False
    print(f"{entry.file_name}: {told}")  # noqa: T201
    return True


class _Transfer:
    """Shows how far a download is, once it is known how far it goes."""

    def __init__(self, shown: ExitStack) -> None:
        self._shown = shown
        self._progress: Progress | None = None
        self._done = 0

    def __call__(self, done: int, total: int | None) -> None:
        if self._progress is None and total:
            self._progress = self._shown.enter_context(Progress(total))
        if self._progress is not None:
            self._progress.advance(done - self._done)
            self._done = done


def _ask(url: str, ca_file: Path | None) -> bytes:
    """Ask a running service."""
    client = OriginClient(trusted_authorities(ca_file), STALL_SECONDS)
    with client.fetch(f"{url.rstrip('/')}/images", {}, Interruption()) as response:
        return response.read_all(MAX_ANSWER_BYTES)


def _rows(document: bytes) -> list[dict[str, str]]:
    try:
        return [_row(image) for image in json.loads(document)["images"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Unavailable("the answer is not that of an image service") from None


def _row(image: Mapping[str, Any]) -> dict[str, str]:
    row = {column: str(image[column] or "") for column in _COLUMNS if column != "progress"}
    done, total = image["bytes_done"], image["bytes_total"]
    share = (
        f"{int(done) * 100 // int(total)}% of {int(total) / _MIB:.1f} MiB"
        if total
        else f"{int(done) / _MIB:.1f} MiB"
    )
    return {**row, "progress": share, "sha256": row["sha256"][:12]}


VERBS = {"list": run_list, "verify": run_verify, "fetch": run_fetch, "remove": run_remove}
