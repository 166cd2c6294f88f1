"""``image-service serve --check``: the configuration, its faults and warnings, without a start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from image_service.common.command_line.messages import tell
from image_service.common.command_line.parser import printable
from image_service.common.database.postgresql import check_database
from image_service.common.registry.references import is_registry_url
from image_service.server.assisted.check import check_upstream
from image_service.server.catalog.download.origin_check import check_origins
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.settings.effective import render_settings
from image_service.settings.settings import read_settings
from image_service.settings.warnings import find_warnings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.posixbase import PosixReactorBase

    from image_service.settings.settings import Settings

_TIMEOUT_SECONDS = 10.0  # of all requests to origins


def check(*, standalone: bool, offline: bool) -> int:
    """Print the settings in force to standard output, and warnings to standard error; write nothing else.

    Ports are not bound: a running service uses them, and its configuration may be checked too.

    Args:
        standalone: as for a start.
        offline: False: assisted-service, the database and the origins of base images are tried once.

    Raises:
        SystemExit: the configuration is not valid; see `read_settings`.
    """
    settings = read_settings(standalone=standalone)
    for line in render_settings(settings, os.environ):
        print(printable(line))  # noqa: T201
    for warning in _warnings(settings, standalone=standalone, offline=offline):
        _tell(f"warning: {warning}", "warn")
    _tell("the configuration is valid", "info")
    return 0


def _warnings(settings: Settings, *, standalone: bool, offline: bool) -> Iterator[str]:
    for directory in filter(None, (settings.storage.data_dir, settings.storage.scratch_dir)):
        if not directory.is_dir():
            yield f"{directory.absolute()} does not exist; the start will create it"
    for image in settings.catalog.images:
        if image.local_path is not None and not os.access(image.local_path, os.R_OK):
            yield f"OS_IMAGES: {image.local_path} does not exist, or uid {os.geteuid()} may not read it"
    yield from find_warnings(settings, settings.base_url(settings.listen.port), standalone=standalone)
    if offline:
        return
    if settings.upstream.host is not None and (fault := _try_assisted_service(settings)):
        yield fault
    database = settings.database
    for name, url in (("DATABASE_URL", database.url), ("DATABASE_LISTEN_URL", database.listen_url)):
        if url is not None and (fault := check_database(url)):
            yield f"{name}: {fault}"
    urls = settings.source_urls
    client = OriginClient.from_settings(settings.download, urls, settings.proxies, settings.registries)
    tried = (url for url in urls if url.startswith("http") or is_registry_url(url))
    architectures = {source.url: source.architectures[0] for source in settings.streams.sources}
    architectures |= {image.url: image.cpu_architecture for image in settings.catalog.images}
    yield from check_origins(client, tried, _TIMEOUT_SECONDS, architectures)


def _try_assisted_service(settings: Settings) -> str | None:
    """Return why assisted-service does not answer; None: it does."""
    found: list[str | None] = []

    async def run(reactor: PosixReactorBase) -> None:
        found.append(await check_upstream(reactor, settings.upstream, settings.proxies))

    try:
        react(lambda reactor: Deferred.fromCoroutine(run(reactor)))
    except SystemExit:  # which react always raises
        if not found:  # a signal has stopped the reactor
            raise
    return found[0]


def _tell(text: str, level: str) -> None:
    tell(f"image-service: {printable(text)}", level)
