"""Signed statements of boot images: made in the thread of digests, once per version, and cached.

Nothing is computed before a client asks for it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from image_service.common.concurrency.lru import ENTRY_BYTES, LruCache
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import BaseImageError, NotFound
from image_service.core.extents import ExtentMap, FileExtent, Literal
from image_service.core.formats.digest_list import BLOCK_BYTES
from image_service.core.images.boot_image import PLAIN, BootImage
from image_service.core.images.reference import Kind
from image_service.core.provenance.dsse import BUNDLE, sign_bundle
from image_service.core.provenance.statement import (
    Purpose,
    StatedBase,
    contains_whole,
    hash_blocks,
    state_image,
)
from image_service.core.provenance.statement_json import render_statement
from image_service.server.catalog.lifecycle.signature import MAX_SIGNATURE_BYTES
from image_service.server.http.respond import Representation
from image_service.server.serving.digests import is_local, read_block
from image_service.server.snapshots.storage.snapshot import VersionLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage
    from image_service.core.provenance.dsse import SigningKeys
    from image_service.server.serving.digests import Digests
    from image_service.server.snapshots.snapshots import Snapshots
    from image_service.server.snapshots.versions import ComposedVersion, Version

CACHE_BYTES = 16 * 1024 * 1024
"""Of all cached statements: one has some 80 KB for each GB of the base image, which are its block digests."""
MAX_BASES = 64
# The config is what else they consist of.
_CONFIG_KINDS = frozenset({Kind.PXE_INITRD, Kind.CONFIG_ISO})


class StatedOrigin(Protocol):
    """Where a base image came from; see `BaseOrigin` of the catalog."""

    @property
    def url(self) -> str | None:
        """None: it is not known."""

    @property
    def signature(self) -> Path | None:
        """The file of its vendor's signature."""


FindOrigin: TypeAlias = "Callable[[BaseImage], StatedOrigin]"


@attrs.frozen
class _BaseDigests:
    """The SHA-256 of a base image, and of each block of it."""

    sha256: str
    blocks: tuple[str, ...]


class Statements:
    """Signs statements, and keeps them.

    Args:
        digests: computes those of images, and runs the rest in its thread.
        get_keys: returns the keys as they are now.
        find_origin: returns where a base image came from.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        digests: Digests,
        get_keys: Callable[[], SigningKeys],
        find_origin: FindOrigin,
    ) -> None:
        self._snapshots = snapshots
        self._digests = digests
        self._get_keys = get_keys
        self._find_origin = find_origin
        self._cache: LruCache[str, Representation] = LruCache(
            CACHE_BYTES, lambda bundle: bundle.image.size + ENTRY_BYTES
        )
        self._making: SingleFlight[str, Representation] = SingleFlight()
        self._bases: LruCache[str, _BaseDigests] = LruCache(MAX_BASES)  # by their identity in ETags

    async def get(self, composed: ComposedVersion, deadline: float) -> Representation:
        """Return the bundle with the statement of an image.

        Raises:
            ImageServiceError: as `Digests.get` raises; the base has too many bytes beneath the customization.
        """
        version, image = composed.version, composed.representation.image
        time = _time_of(version, image)
        layout = PLAIN if version.snapshot is None else version.snapshot.layout
        signer = self._get_keys().signer
        # Equal bytes may be made at two times, and of a base with two names.
        names = f"{version.base.version} {image.file_name}"
        key = f"statement {signer.public.hint} {image.etag} {time} {layout} {names}"
        found = self._cache.get(key)
        if found is not None:
            return found
        config = await self._load_config(version)
        base = version.base
        whole = FileExtent(base.file, 0, base.file.size)
        if not is_local((whole,)):
            raise NotFound(
                "there is no statement yet: its base image is remote, and not all of it is on local disk;"
                " GET /images says how much is"
            )
        digest = await self._digests.get(image, deadline)
        origin = self._find_origin(base)

        def sign(check: Callable[[], None]) -> bytes:
            statement = state_image(
                image,
                base,
                self._state_base(base, origin, check, has_blocks=contains_whole(image, base)),
                digest=digest.hex(),
                config=config,
                time=time,
                layout=layout,
                own=Purpose.IGNITION if _kind_of(version) in _CONFIG_KINDS else Purpose.BOOT_RECORDS,
            )
            return sign_bundle(signer, render_statement(statement))

        async def make() -> Representation:
            bundle = self._cache[key] = _represent(await self._digests.run(sign), image, time)
            return bundle

        return await self._digests.wait(self._making.join(key, make), "the statement", deadline)

    async def _load_config(self, version: Version) -> bytes:
        if version.snapshot is None or _kind_of(version) is Kind.INITRD_ADDRSIZE:
            return b""
        customization = await self._snapshots.load(version.snapshot)
        if customization is None:
            raise VersionLost
        return customization.ignition

    def _state_base(
        self, base: BaseImage, origin: StatedOrigin, check: Callable[[], None], *, has_blocks: bool
    ) -> StatedBase:
        """Return the stated base; reads all of it unless its digests are known. Blocks."""
        digests = self._bases.get(base.sha256)
        # The identity of a remote base image is its digest only if its blocks were verified.
        if digests is None and (has_blocks or base.file.residency is not None):
            digests = self._bases[base.sha256] = _hash_base(base, check)
        blocks = digests.blocks if digests is not None and has_blocks else ()
        return StatedBase(
            sha256=base.sha256 if digests is None else digests.sha256,
            length=base.file.size,
            version=base.version,
            architecture=base.architecture,
            origin=origin.url,
            block_length=BLOCK_BYTES if blocks else None,
            blocks=blocks,
            signature=_read_signature(origin.signature),
        )


def _represent(bundle: bytes, image: BootImage, time: datetime | None) -> Representation:
    return Representation(
        BootImage(
            extents=ExtentMap((Literal(bundle),)),
            etag=f'"{sha256(bundle).hexdigest()[:40]}"',
            modified=time,
            file_name=f"{image.file_name}.intoto.json",
            is_iso=False,
            is_public=image.is_public,
            content_type=BUNDLE,
        )
    )


def _hash_base(base: BaseImage, check: Callable[[], None]) -> _BaseDigests:
    def read_at(offset: int, length: int) -> bytes:
        return bytes(read_block(FileExtent(base.file, offset, length)))

    whole, blocks = hash_blocks(read_at, base.file.size, BLOCK_BYTES, check)
    if base.file.residency is None and whole != base.sha256:
        raise BaseImageError(f"{base.name} has another SHA-256 than when it was opened")
    return _BaseDigests(whole, blocks)


def _read_signature(path: Path | None) -> bytes | None:
    if path is not None:
        with suppress(OSError), path.open("rb") as file:  # it may have been removed since
            return file.read(MAX_SIGNATURE_BYTES)
    return None


def _time_of(version: Version, image: BootImage) -> datetime | None:
    if version.snapshot is None:
        return image.modified
    return datetime.fromtimestamp(int(version.snapshot.stored_at), UTC)


def _kind_of(version: Version) -> Kind | None:
    return version.ref.kind if version.ref.needs_customization else None
