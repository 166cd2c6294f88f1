"""Builds the streams and their mirror, and keeps them and the catalog in step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.interruption import Interruption
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.streams.mirror import Mirror
from image_service.server.streams.mirrored_disks import MirroredDisks
from image_service.server.streams.release_preparer import ReleasePreparer
from image_service.server.streams.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.core.families.coreos.stream_metadata import Release
    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.build_catalog import BaseImages
    from image_service.server.catalog.catalog import Catalog
    from image_service.server.catalog.download.origin_client import OriginClient
    from image_service.server.streams.release_preparer import MirroredRelease
    from image_service.server.streams.stream import StreamRelease
    from image_service.settings.base_images import StreamSettings
    from image_service.settings.os_images import OsImage
    from image_service.settings.stream_sources import StreamSource

_SERVED = {BaseImageState.READY, BaseImageState.DEGRADED}
_NOT_READY = {BaseImageState.DEGRADED, BaseImageState.FAILED, BaseImageState.REFUSED}

RELOAD_SECONDS = 10.0
"""Interval at which a process that fetches no metadata reads the metadata stored by the one that fetches."""


@attrs.define(eq=False)
class StreamSync:
    """Keeps the catalog in step with the streams, and the streams' aliases and the mirror with the catalog.

    Args:
        configured: base images that the catalog has in any case.
        superseded: were configured before; see ``configure``.
    """

    configured: tuple[OsImage, ...]
    catalog: Catalog
    streams: Streams
    mirror: Mirror
    superseded: tuple[OsImage, ...] = ()

    def configure(self, images: Iterable[OsImage], sources: Iterable[StreamSource]) -> None:
        """Take other configured images and streams.

        An image that is not configured any more stays as long as it is the only one that is served for its
        OpenShift version, and another is configured for that.
        """
        self.superseded = (*self.configured, *self.superseded)
        self.configured = tuple(images)
        self.streams.replace_sources(sources)
        self.update()

    def update(self) -> None:
        """Move aliases, then replace the images of the catalog by those still desired, and update the mirror.

        To be called when other releases are desired, and when a base image becomes ready. A configured image
        that is also a stream's release stays as configured, and gets the stream's name.
        """
        self.streams.move_aliases(self._may_replace)
        entries = {image.file_name: image for image in self.configured}
        for desired in self.streams.desired:
            entry = desired.entry
            known = entries.setdefault(entry.file_name, entry)
            names = dict.fromkeys((*known.openshift_versions, *entry.openshift_versions))
            entries[entry.file_name] = attrs.evolve(known, openshift_versions=tuple(names))
        self.superseded = tuple(self._still_needed(entries))
        # First, so that an OpenShift version is theirs.
        self.catalog.replace_images((*self.superseded, *entries.values()))
        self.catalog.set_aliases(self.streams.aliases)
        self.mirror.update()

    def _still_needed(self, entries: Mapping[str, OsImage]) -> Iterator[OsImage]:
        """Yield the superseded images that are served, with the OpenShift versions that need them.

        Args:
            entries: all others, by file name.
        """

        def needs(image: OsImage, openshift_version: str) -> bool:
            successors = [
                other
                for other in entries.values()
                if openshift_version in other.openshift_versions
                and (other.cpu_architecture, other.image_type) == (image.cpu_architecture, image.image_type)
            ]
            return bool(successors) and not any(map(self.catalog.is_served, successors))

        for image in self.superseded:
            if image.file_name not in entries and self.catalog.is_served(image):
                versions = tuple(version for version in image.openshift_versions if needs(image, version))
                if versions:
                    yield attrs.evolve(image, openshift_versions=versions)

    def _may_replace(self, release: Release, current: str | None) -> bool:
        """Return True for a ready release, and for a degraded one if nothing is lost by it."""
        states = self.catalog.find_states(release.version, release.architecture)
        if BaseImageState.READY in states or current is None:
            return not states.isdisjoint(_SERVED)
        replaced = self.catalog.find_states(current, release.architecture)
        return BaseImageState.DEGRADED in states and replaced <= _NOT_READY


async def start_streams(  # noqa: PLR0913 - streams and mirror connect these
    parts: PartsStack,
    settings: StreamSettings,
    http: OriginClient,
    base_images: BaseImages,
    *,
    directory: Path,
    get_base_url: Callable[[], str] | None,
    is_leader: bool,
) -> StreamSync:
    """Start the streams, which add base images to the catalog, and the mirror, which publishes those.

    The leader fetches metadata to the directory; the other processes read it there.

    Args:
        get_base_url: returns that of the mirror; None: nobody asks it, and it fetches no further artifacts.
    """
    catalog, interruption = base_images.catalog, Interruption()
    seconds = settings.refresh_seconds
    streams = Streams(
        parts.reactor,
        parts.in_thread_pool(1, "streams"),
        http,
        settings.sources,
        directory,
        refresh_seconds=seconds if is_leader else min(RELOAD_SECONDS, seconds),
        fetches=is_leader,
    )
    preparer = ReleasePreparer(directory, http, interruption, base_images.data_dir.claim_files)

    def prepare(release: StreamRelease, base: BaseImage) -> MirroredRelease:
        """Prepare a release in one process at a time: the next one finds its digests and signatures."""
        with base_images.data_dir.lock(f"mirror of {release.entry.file_name}", interruption):
            return preparer.prepare(release, base)

    disks = None
    if get_base_url is not None:
        in_thread = parts.in_thread_pool(1, "mirrored artifacts", low_priority=True)
        disks = MirroredDisks(base_images.fetcher, preparer, in_thread, interruption)
        base_images.options.other_names = lambda: disks.names
        parts.push_async_callback(disks.stop)
    mirror = Mirror(
        streams,
        catalog.find_base_image,
        parts.in_thread_pool(1, "mirror", low_priority=True),
        prepare,
        get_base_url or (lambda: ""),
        disks,
    )
    parts.call_every(seconds, mirror.update)
    parts.push_async_callback(mirror.wait_until_idle)
    parts.callback(interruption.interrupt)
    sync = StreamSync(base_images.configured, catalog, streams, mirror)
    base_images.options.on_change = sync.update
    parts.push_async_callback(streams.stop)
    await streams.start(sync.update)
    parts.callback(setattr, base_images.options, "on_change", lambda: None)
    return sync
