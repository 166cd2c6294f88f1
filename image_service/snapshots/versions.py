"""Versions of an image, and what a request asks for."""

from __future__ import annotations

import enum

import attrs

from image_service.http.respond import Representation  # noqa: TC001 - attrs resolves annotations
from image_service.images.base import BaseImage  # noqa: TC001 - same
from image_service.images.reference import ImageRef, Reader, Ref
from image_service.snapshots.model import Snapshot  # noqa: TC001 - same

OVERHEAD_BYTES = 4 * 1024
"""What a composed image costs beside its bytes, about."""


class ReadMode(enum.Enum):
    """Which version a request is for."""

    NEWEST = "newest"  # HEAD, a GET of the whole, and everything else
    RESUME = "resume"  # a range without a validator: the version that its reader is reading
    NAMED = "named"  # a range with a validator: the version that this names


@attrs.frozen
class ImageRequest:
    """What a request asks for.

    Args:
        reader: who reads what.
        mode: which version of it.
        etags: that it names.
        date: that it names, as it stands in the header field.
    """

    reader: Reader
    mode: ReadMode = ReadMode.NEWEST
    etags: tuple[str, ...] = ()
    date: str | None = None


def _identity_of_ref(ref: Ref) -> tuple[object, ...]:
    """What an image is made of: not the name by which its base was found."""
    return (ref.infra_env_id, ref.kind) if isinstance(ref, ImageRef) else (ref.artifact,)


def _identity_of_base(base: BaseImage) -> tuple[str, ...]:
    return base.sha256, base.version, base.architecture


@attrs.frozen(cache_hash=True)
class Version:
    """One snapshot over one base image.

    Args:
        ref: which image; complete.
        base: the base image.
        snapshot: laid over it; None for a boot artifact.
    """

    ref: Ref = attrs.field(eq=_identity_of_ref)
    base: BaseImage = attrs.field(eq=_identity_of_base)
    snapshot: Snapshot | None


@attrs.frozen(eq=False)
class ComposedVersion:
    """A version with its boot image."""

    version: Version
    representation: Representation

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, about: the bytes that are not the base's, and what is around them."""
        return self.representation.image.extents.literal_bytes + OVERHEAD_BYTES

    def is_named_by(self, request: ImageRequest) -> bool:
        """Return True if a request's validators name it."""
        representation = self.representation
        by_date = request.date is not None and representation.date == request.date
        return by_date or representation.image.etag in request.etags
