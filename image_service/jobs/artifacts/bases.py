"""The base images that composes are made of: live ISOs of the catalog, and disk images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.errors import UnknownBaseImage
from image_service.core.families.coreos.family import WITHOUT_MINIMAL_ISO
from image_service.core.images.reference import Kind
from image_service.jobs.model import METAL, ComposeBase, ImageType
from image_service.settings.os_images import FULL_ISO, METAL_DISK, precedence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.catalog import Catalog
    from image_service.server.streams.streams import Streams
    from image_service.settings.os_images import OsImage

_RAW = "raw"


class Bases:
    """Finds base images by the names of distributions.

    A distribution is ``rhcos-`` and an OpenShift version, the name of a stream that begins with no digit, or
    an alias of one of them.

    Args:
        catalog: of live ISOs, those of streams among them.
        streams: whose releases have disk images.
        disks: the configured disk images.
        aliases: further names of OpenShift versions and streams.
        byte_server_url: of a byte server with the same live ISOs; None: there is none.
    """

    def __init__(
        self,
        catalog: Catalog,
        streams: Streams,
        disks: Iterable[OsImage],
        aliases: Mapping[str, str],
        byte_server_url: str | None = None,
    ) -> None:
        self._catalog = catalog
        self._streams = streams
        self._disks = tuple(disks)
        self._aliases = aliases
        self._byte_server_url = byte_server_url
        self._disk_bytes: dict[ComposeBase, int] = {}

    def distributions(self) -> Mapping[str, Mapping[str, tuple[ImageType, ...]]]:
        """Return the image types by distribution and architecture, aliases included."""
        named: dict[str, dict[str, tuple[ImageType, ...]]] = {}
        for name, architecture in sorted(self._names(), key=lambda key: (precedence(key[0]), key[1])):
            types = tuple(kind for kind in ImageType if self._find(name, architecture, kind))
            named.setdefault(name, {})[architecture] = types
        return {
            **{_distribution(name): offered for name, offered in named.items()},
            **{alias: named[name] for alias, name in self._aliases.items() if name in named},
        }

    def find(self, distribution: str, architecture: str, image_type: ImageType) -> ComposeBase:
        """Return the base for an image; that of a stream is its newest release now.

        Raises:
            UnknownBaseImage: there is none; `distributions` lists all.
        """
        name = self._aliases.get(distribution)
        if name is None:
            name = distribution.removeprefix("rhcos-")
            name = name if _distribution(name) == distribution else ""
        base = self._find(name, architecture, image_type)
        if base is None:
            raise UnknownBaseImage(
                f"there is no base image of {distribution!r:.100} for {architecture!r:.100} and {image_type}"
            )
        return base

    def live_iso(self, base: ComposeBase) -> BaseImage:
        """Return a live ISO, ready to serve; raises as ``Catalog.find_base_image``."""
        return self._catalog.find_base_image(base.version, base.architecture, Kind.FULL_ISO)

    def disk(self, base: ComposeBase) -> OsImage:
        """Return the entry of a disk image; UnknownBaseImage if it is not configured any more."""
        for found, entry in self.all_disks():
            if found == base:
                return entry
        raise UnknownBaseImage(
            f"the disk image {base.version} for {base.architecture} and {base.platform} is no longer offered"
        )

    def disk_bytes(self, base: ComposeBase) -> int:
        """Return the virtual size of a disk image; 0 before it was fetched."""
        return self._disk_bytes.get(base, 0)

    def set_disk_bytes(self, base: ComposeBase, disk_bytes: int) -> None:
        """Set the virtual size of a disk image that was fetched."""
        self._disk_bytes[base] = disk_bytes

    def rootfs_url(self, base: ComposeBase) -> str:
        """Return the URL of the rootfs of a live ISO, at its stream or at a byte server; "": at neither."""
        for desired in self._streams.desired:
            release = desired.release
            if (release.version, release.architecture) == (base.version, base.architecture):
                return release.rootfs.location if release.rootfs else ""
        if self._byte_server_url is None:
            return ""
        return f"{self._byte_server_url}/boot-artifacts/{base.version}/{base.architecture}/rootfs.img"

    def all_disks(self) -> Iterator[tuple[ComposeBase, OsImage]]:
        """Yield the disk images with their entries: the configured ones, then those of streams."""
        for entry in self._disks:
            yield ComposeBase(entry.version, entry.cpu_architecture, METAL, _RAW), entry
        for desired in self._streams.desired:
            release = desired.release
            for disk in release.disks:
                base = ComposeBase(release.version, release.architecture, disk.platform, disk.format)
                yield base, desired.disk_entry(disk)

    @property
    def disk_names(self) -> set[str]:
        """The names of the files of all disk images that are offered."""
        return {entry.file_name for _, entry in self.all_disks()}

    def _names(self) -> set[tuple[str, str]]:
        """Return all OpenShift versions and streams, each with an architecture."""
        isos = [status.entry for status in self._catalog.statuses() if status.entry.image_type == FULL_ISO]
        return {
            (name, entry.cpu_architecture)
            for entry in (*isos, *self._disks)
            for name in entry.openshift_versions
        }

    def _find(self, name: str, architecture: str, image_type: ImageType) -> ComposeBase | None:
        iso = self._find_iso(name, architecture)
        if image_type.is_disk:
            offered = [
                (base, entry)
                for base, entry in self.all_disks()
                if base.architecture == architecture
                and base.platform in {image_type.platform, METAL}
                and (name in entry.openshift_versions)
                and (entry.image_type == METAL_DISK or (iso is not None and base.version == iso.version))
            ]
            offered.sort(key=lambda found: found[0].platform != image_type.platform)
            return offered[0][0] if offered else None
        if image_type is ImageType.NETWORK_INSTALLER and architecture in WITHOUT_MINIMAL_ISO:
            return None
        return iso

    def _find_iso(self, name: str, architecture: str) -> ComposeBase | None:
        try:
            entry = self._catalog.find_entry(name, architecture, Kind.FULL_ISO)
        except UnknownBaseImage:
            return None
        return ComposeBase(entry.version, architecture) if name in entry.openshift_versions else None


def _distribution(name: str) -> str:
    """Return the name of the distribution of an OpenShift version or a stream."""
    return f"rhcos-{name}" if name[:1].isdigit() else name
