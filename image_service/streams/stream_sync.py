"""What streams offer becomes base images; what is ready of it gets the stream's name, and is published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from image_service.coreos.stream_metadata import Release
    from image_service.settings.os_images import OsImage
    from image_service.streams.mirror import Mirror
    from image_service.streams.streams import StreamRelease


class Images(Protocol):
    """Base images, as ``Catalog`` has them."""

    def replace_images(self, entries: Iterable[OsImage]) -> None:
        """Have these from now on."""

    def set_aliases(self, aliases: Mapping[tuple[str, str], str]) -> None:
        """Let names stand for certain images."""

    def has_ready_image(self, version: str, architecture: str) -> bool:
        """Whether one can be served in all ways."""


class Offers(Protocol):
    """Streams, as ``Streams`` has them."""

    @property
    def wanted(self) -> Sequence[StreamRelease]:
        """The releases to be held."""

    @property
    def aliases(self) -> Mapping[tuple[str, str], str]:
        """What the names stand for."""

    def move_aliases(self, is_ready: Callable[[Release], bool]) -> None:
        """Let them stand for what is ready."""


@attrs.frozen(eq=False)
class StreamSync:
    """Has the catalog follow the streams, and the mirror the catalog.

    Args:
        configured: the images that there are in any case.
        images: the catalog.
        offers: the streams.
        mirror: what is published.
    """

    configured: tuple[OsImage, ...]
    images: Images
    offers: Offers
    mirror: Mirror

    def offers_changed(self) -> None:
        """Hold other releases than before. An image that is configured is not another one for a stream."""
        entries = {image.file_name: image for image in self.configured}
        for wanted in self.offers.wanted:
            entry = wanted.entry
            known = entries.setdefault(entry.file_name, entry)
            names = dict.fromkeys((*known.openshift_versions, *entry.openshift_versions))
            entries[entry.file_name] = attrs.evolve(known, openshift_versions=tuple(names))
        self.images.replace_images(entries.values())
        self.images_changed()

    def images_changed(self) -> None:
        """Name and publish what has become ready."""
        self.offers.move_aliases(
            lambda release: self.images.has_ready_image(release.version, release.architecture)
        )
        self.images.set_aliases(self.offers.aliases)
        self.mirror.update()
