"""The base images that composes are made of: live ISOs of the catalog, and disk images."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.jobs.model import ComposeBase, ImageType


class Bases:
    """Finds base images by the names of distributions."""

    def distributions(self) -> Mapping[str, Mapping[str, tuple[ImageType, ...]]]:
        """Return what can be composed: image types by distribution and architecture, aliases included."""
        raise NotImplementedError

    def find(self, distribution: str, architecture: str, image_type: ImageType) -> ComposeBase:
        """Return the base for an image; that of a stream is its newest release now.

        Raises:
            UnknownBaseImage: there is none. `distributions` says what there is.
        """
        raise NotImplementedError
