"""Builds what remote base images need from settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from image_service.common.concurrency.interruption import Interruption
from image_service.common.files.block_cache.block_cache import BlockCache
from image_service.common.registry.client import RegistryClient
from image_service.server.catalog.remote.opening import RemoteImages
from image_service.server.catalog.remote.origin import MAX_IDLE, build_range_client
from image_service.server.catalog.remote.s3 import S3Signer

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.interfaces import IReactorFromThreads

    from image_service.common.objects.s3_client import S3Options
    from image_service.server.catalog.download.origin_client import OriginClient
    from image_service.server.catalog.lifecycle.signature import KeyRing
    from image_service.settings.remote import RemoteSettings


def build_remote_images(  # noqa: PLR0913 - two groups of settings
    reactor: IReactorFromThreads,
    settings: RemoteSettings,
    s3: S3Options,
    downloads: OriginClient,
    *,
    data_dir: Path,
    keys: KeyRing | None,
    is_leader: bool,
) -> RemoteImages:
    """Return what opens remote images; nothing is started before there is one.

    Args:
        reactor: whose thread runs the senders.
        settings: of the cache and its origins.
        s3: credentials of S3.
        downloads: has the other credentials, and authorities.
        data_dir: the cache is in it unless it has a directory of its own.
        keys: a digest list must be signed by one of them; None: signatures are not verified.
        is_leader: fetches and verifies whole images; the other processes of the host share the cache.
    """
    interruption = Interruption()
    directory = settings.cache_dir or data_dir / "remote"
    whole = settings.prefetch == "all"
    return RemoteImages(
        make_cache=partial(BlockCache, directory, settings.cache_max_bytes, reactor),
        directory=directory,
        client=build_range_client(downloads, interruption),
        registries=RegistryClient(downloads.registry_options, MAX_IDLE),
        interruption=interruption,
        downloads=downloads,
        sign=S3Signer(s3),
        keys=keys,
        prefetch="boot" if whole and not is_leader else settings.prefetch,
        check_seconds=settings.check_seconds,
        max_bytes=settings.cache_max_bytes,
        verifies=is_leader,
    )
