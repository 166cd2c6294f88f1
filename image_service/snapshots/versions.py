"""What a request wants of an image, and which version of it that may be."""

from __future__ import annotations

import enum

import attrs

from image_service.http.respond import Representation  # noqa: TC001 - attrs resolves annotations
from image_service.images.base import BaseImage  # noqa: TC001 - same
from image_service.images.reference import ImageRef, Reader, Ref
from image_service.snapshots.snapshot import Snapshot  # noqa: TC001 - same

OVERHEAD_BYTES = 4 * 1024
"""What a composed image costs beside its bytes, about."""


class ReadMode(enum.Enum):
    """How a request reads."""

    NEWEST = "newest"  # HEAD, a whole GET and the rest
    CONTINUING = "continuing"  # a range without a validator
    NAMED = "named"  # names the version that it has a part of


@attrs.frozen
class ImageRequest:
    """What a request wants.

    Args:
        reader: who reads what.
        reading: how.
        etags: the entity tags that it names.
        date: the date that it names, as it stands there.
    """

    reader: Reader
    reading: ReadMode = ReadMode.NEWEST
    etags: tuple[str, ...] = ()
    date: str | None = None


def _identity_of_ref(ref: Ref) -> tuple[object, ...]:
    """What of it an image is made of: not the name by which the base was found."""
    return (ref.infra_env_id, ref.kind) if isinstance(ref, ImageRef) else (ref.artifact,)


def _identity_of_base(base: BaseImage) -> tuple[str, ...]:
    return base.sha256, base.version, base.architecture


@attrs.frozen(cache_hash=True)
class Version:
    """An image as it is made of one base and one snapshot.

    Args:
        ref: which image; nothing left open.
        base: what is below.
        snapshot: what is laid over it; None: nothing.
    """

    ref: Ref = attrs.field(eq=_identity_of_ref)
    base: BaseImage = attrs.field(eq=_identity_of_base)
    snapshot: Snapshot | None


@attrs.frozen(eq=False)
class Composed:
    """A version with its bytes.

    Args:
        version: which.
        representation: what is served.
    """

    version: Version
    representation: Representation

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, about: the bytes that are not the base's, and all that is around them."""
        return self.representation.image.extents.literal_bytes + OVERHEAD_BYTES

    def is_named(self, want: ImageRequest) -> bool:
        """Tell whether it is what a request names."""
        representation = self.representation
        by_date = want.date is not None and representation.date == want.date
        return by_date or representation.image.etag in want.etags
