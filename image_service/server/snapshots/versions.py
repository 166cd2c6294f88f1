"""Versions of images, and requests for them. Knows no clock."""

from __future__ import annotations

import enum

import attrs

from image_service.core.images.base_image import BaseImage  # noqa: TC001 - attrs resolves annotations
from image_service.core.images.reference import Reader, Ref  # noqa: TC001 - same
from image_service.server.http.respond import Representation  # noqa: TC001 - same
from image_service.server.snapshots.storage.snapshot import Snapshot  # noqa: TC001 - same

COMPOSED_OVERHEAD_BYTES = 4 * 1024
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
        reader: the client, and what it reads.
        mode: which version of it.
        etags: that it names.
        date: that it names, as it stands in the header field.
        starts_over: it is a range at the beginning: the newest, if what the reader was reading is lost.
    """

    reader: Reader
    mode: ReadMode = ReadMode.NEWEST
    etags: tuple[str, ...] = ()
    date: str | None = None
    starts_over: bool = False


@attrs.frozen(cache_hash=True)
class Version:
    """One snapshot over one base image.

    Equal versions have equal bytes: it does not matter by which name the base image was found.

    Args:
        ref: which image; complete.
        snapshot: laid over it; None for a boot artifact.
    """

    ref: Ref = attrs.field(eq=False)
    base: BaseImage = attrs.field(eq=False)
    snapshot: Snapshot | None = attrs.field(eq=False)
    _identity: tuple[object, ...] = attrs.field(init=False, repr=False)

    @_identity.default
    def _make_identity(self) -> tuple[object, ...]:
        ref, base = self.ref, self.base
        image = (ref.infra_env_id, ref.kind) if ref.needs_customization else (ref.artifact,)
        return (*image, base.sha256, base.version, base.architecture, self.snapshot)


@attrs.frozen(eq=False)
class ComposedVersion:
    """A version with its boot image."""

    version: Version
    representation: Representation

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, about: the bytes that are not the base's, and what is around them."""
        return self.representation.image.extents.literal_bytes + COMPOSED_OVERHEAD_BYTES

    def is_named_by(self, request: ImageRequest) -> bool:
        """Return True if a request's validators name it."""
        representation = self.representation
        by_date = request.date is not None and representation.date == request.date
        return by_date or representation.image.etag in request.etags
