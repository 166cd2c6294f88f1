"""Signed statements of boot images: once per version."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from image_service.core.images.boot_image import PLAIN, BootImage
from image_service.core.images.reference import Kind
from image_service.core.provenance.statement import Purpose
from image_service.server.serving.signed_statements import SignedStatements, StatedImage
from image_service.server.snapshots.storage.snapshot import VersionLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.provenance.dsse import SigningKeys
    from image_service.server.http.respond import Representation
    from image_service.server.serving.digests import Digests
    from image_service.server.serving.signed_statements import FindOrigin
    from image_service.server.snapshots.snapshots import Snapshots
    from image_service.server.snapshots.versions import ComposedVersion, Version

# The config is what else they consist of.
_CONFIG_KINDS = frozenset({Kind.PXE_INITRD, Kind.CONFIG_ISO})


class Statements:
    """The statements of versions; see `SignedStatements`."""

    def __init__(
        self,
        snapshots: Snapshots,
        digests: Digests,
        get_keys: Callable[[], SigningKeys],
        find_origin: FindOrigin,
    ) -> None:
        self._snapshots = snapshots
        self._signed = SignedStatements(digests, get_keys, find_origin)

    async def get(self, composed: ComposedVersion, deadline: float) -> Representation:
        """Return the bundle with the statement of an image; raises as `SignedStatements.get`."""
        version, image = composed.version, composed.representation.image
        stated = StatedImage(
            image,
            version.base,
            _time_of(version, image),
            PLAIN if version.snapshot is None else version.snapshot.layout,
            Purpose.IGNITION if _kind_of(version) in _CONFIG_KINDS else Purpose.BOOT_RECORDS,
        )
        return await self._signed.get(stated, partial(self._load_config, version), deadline)

    async def _load_config(self, version: Version) -> bytes:
        if version.snapshot is None or _kind_of(version) is Kind.INITRD_ADDRSIZE:
            return b""
        customization = await self._snapshots.load(version.snapshot)
        if customization is None:
            raise VersionLost
        return customization.ignition


def _time_of(version: Version, image: BootImage) -> datetime | None:
    if version.snapshot is None:
        return image.modified
    return datetime.fromtimestamp(int(version.snapshot.stored_at), UTC)


def _kind_of(version: Version) -> Kind | None:
    return version.ref.kind if version.ref.needs_customization else None
