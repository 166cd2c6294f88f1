"""Keeps the catalog in step with the streams, and the streams' aliases and the mirror with the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from image_service.catalog.catalog import Catalog
    from image_service.settings.os_images import OsImage
    from image_service.streams.mirror import Mirror
    from image_service.streams.streams import Streams


@attrs.frozen(eq=False)
class StreamSync:
    """Connects streams, catalog and mirror.

    Args:
        configured: base images that the catalog has in any case.
        catalog: gets the releases of the streams as base images.
        streams: their aliases move to releases that are ready.
        mirror: updated whenever base images may have become ready.
    """

    configured: tuple[OsImage, ...]
    catalog: Catalog
    streams: Streams
    mirror: Mirror

    def update_catalog(self) -> None:
        """Replace the base images of the catalog; to be called when other releases are desired.

        A configured image that is also a stream's release stays as configured, and gets the stream's name.
        """
        entries = {image.file_name: image for image in self.configured}
        for desired in self.streams.desired:
            entry = desired.entry
            known = entries.setdefault(entry.file_name, entry)
            names = dict.fromkeys((*known.openshift_versions, *entry.openshift_versions))
            entries[entry.file_name] = attrs.evolve(known, openshift_versions=tuple(names))
        self.catalog.replace_images(entries.values())
        self.update_aliases()

    def update_aliases(self) -> None:
        """Move aliases and update the mirror; to be called when a base image becomes ready."""
        self.streams.move_aliases(
            lambda release: self.catalog.has_ready_image(release.version, release.architecture)
        )
        self.catalog.set_aliases(self.streams.aliases)
        self.mirror.update()
