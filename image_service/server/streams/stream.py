"""A stream: its source, its state, and the releases of it that are desired."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.families.coreos.stream_metadata import original_files
from image_service.server.streams.stream_state import StreamState, load_state, state_path
from image_service.settings.os_images import FULL_ISO, OsImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from twisted.internet.interfaces import IDelayedCall

    from image_service.core.families.coreos.stream_metadata import OriginalFile, Release, StreamDisk
    from image_service.settings.stream_sources import StreamSource


@attrs.frozen
class StreamRelease:
    """A release of the stream of that name, for one architecture.

    Args:
        openshift_version: that it is for; None: not known.
        key: the stream's name in the ConfigMap of that version; empty: as here.
        mirrored: the further artifacts to mirror, as ``PLATFORM/FORMAT``.
    """

    stream: str
    release: Release
    openshift_version: str | None = None
    key: str = ""
    mirrored: tuple[str, ...] = ()

    @property
    def entry(self) -> OsImage:
        """Its ISO as a base image."""
        release = self.release
        return OsImage(
            version=release.version,
            cpu_architecture=release.architecture,
            image_type=FULL_ISO,
            openshift_versions=tuple(filter(None, (self.openshift_version, self.stream))),
            url=release.payload or release.iso.location,
            sha256=release.iso.sha256,
            signature_url=release.iso.signature,
        )

    def disk_entry(self, disk: StreamDisk) -> OsImage:
        """Return one of its disk images as a base image."""
        return attrs.evolve(
            self.entry,
            image_type=f"{disk.platform}-disk",
            url=disk.file.location,
            sha256=disk.file.sha256,
            signature_url=disk.file.signature,
        )

    @property
    def mirrored_files(self) -> tuple[tuple[OriginalFile, OsImage], ...]:
        """The further artifacts to mirror, with their entries; of those of one file name the first."""
        release = self.release
        live = (release.iso, release.kernel, release.initramfs, release.rootfs)
        found: dict[str, OriginalFile | None] = {file.name: None for file in live if file}
        for file in original_files(release.original) if self.mirrored else ():
            if f"{file.platform}/{file.format}" in self.mirrored and file.part == "disk":
                found.setdefault(file.artifact.name, file)
        return tuple(
            (
                file,
                attrs.evolve(
                    self.entry,
                    image_type=f"{file.platform}-{file.format}",
                    url=file.artifact.location,
                    sha256=file.artifact.sha256,
                    signature_url=file.artifact.signature,
                ),
            )
            for file in filter(None, found.values())
        )


def load_releases(data_dir: Path, sources: Iterable[StreamSource]) -> tuple[StreamRelease, ...]:
    """Return the releases to keep, as the stored states of streams have them."""
    return tuple(
        StreamRelease(source.stream, release, source.openshift_version, source.key, source.mirror)
        for source in sources
        for release in load_state(state_path(data_dir, source), source).releases(source)
    )


@attrs.define(eq=False)
class Stream:
    """One stream of ``COREOS_STREAMS``, as it is now."""

    source: StreamSource
    path: Path
    state: StreamState = attrs.field(factory=StreamState)
    releases: Mapping[str, tuple[Release, ...]] = attrs.field(factory=dict)
    """The desired ones by architecture, the newest first."""
    fault: str = ""
    failures: int = 0
    refreshed_at: float = 0.0
    timer: IDelayedCall | None = None

    def set_state(self, state: StreamState) -> None:
        """Take another state, and the releases that it has."""
        self.state = state
        releases = state.releases(self.source)
        self.releases = {
            architecture: tuple(release for release in releases if release.architecture == architecture)
            for architecture in self.source.architectures
        }

    def cancel_timer(self) -> None:
        """Cancel the next refresh, if it is scheduled."""
        if self.timer:
            self.timer.cancel()
            self.timer = None
