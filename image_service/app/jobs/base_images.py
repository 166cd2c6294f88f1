"""Starts the catalog of base images of the jobs role; without any, it has the samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.server.catalog.build_catalog import build_base_images
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.standalone.sample import (
    SAMPLE_ARCHITECTURE,
    SAMPLE_OPENSHIFT_VERSION,
    SAMPLE_VERSION,
    unpack_sample,
    unpack_sample_disk,
)
from image_service.server.streams.build_streams import start_streams
from image_service.settings.os_images import FULL_ISO, METAL_DISK, OsImage

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.server.catalog.build_catalog import BaseImages
    from image_service.server.streams.build_streams import StreamSync
    from image_service.settings.jobs.role import JobsRoleSettings


@attrs.frozen
class ComposeBaseImages:
    """The base images of composes.

    Args:
        disks: configured disk images; streams have more.
    """

    http: OriginClient
    isos: BaseImages
    sync: StreamSync
    disks: tuple[OsImage, ...]


async def start_compose_bases(parts: PartsStack, settings: JobsRoleSettings) -> ComposeBaseImages:
    """Start the catalog and the streams.

    Raises:
        OSError: ``DATA_DIR`` cannot be written.
    """
    http = OriginClient.from_settings(
        settings.download, settings.source_urls, settings.proxies, settings.registries
    )
    images = _configured_images(settings)
    isos = build_base_images(
        parts,
        settings.catalog,
        settings.storage,
        settings.download,
        http,
        settings.remote,
        settings.s3.options,
        configured=tuple(image for image in images if image.is_iso),
        is_leader=True,
        has_mounts=False,
    )
    directory = settings.storage.data_dir
    sync = await start_streams(
        parts, settings.streams, http, isos, directory=directory, get_base_url=None, is_leader=True
    )
    return ComposeBaseImages(http, isos, sync, tuple(image for image in images if not image.is_iso))


def _configured_images(settings: JobsRoleSettings) -> tuple[OsImage, ...]:
    """Return the configured base images; without any, the samples."""
    if settings.catalog.images or settings.streams.sources:
        return settings.catalog.images
    data_dir = settings.storage.data_dir
    return (
        _sample_image(FULL_ISO, unpack_sample(data_dir)),
        _sample_image(METAL_DISK, unpack_sample_disk(data_dir)),
    )


def _sample_image(image_type: str, file: Path) -> OsImage:
    return OsImage(
        version=SAMPLE_VERSION,
        cpu_architecture=SAMPLE_ARCHITECTURE,
        image_type=image_type,
        openshift_versions=(SAMPLE_OPENSHIFT_VERSION,),
        url=file.resolve().as_uri(),
    )
