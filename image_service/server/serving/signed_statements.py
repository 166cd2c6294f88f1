"""Signs statements of images, in the thread of digests, and keeps them.

Nothing is computed before a client asks for it.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from image_service.common.concurrency.lru import ENTRY_BYTES, LruCache
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import BaseImageError, NotFound
from image_service.core.extents import ExtentMap, FileExtent, Literal
from image_service.core.formats.digest_list import BLOCK_BYTES
from image_service.core.images.boot_image import BootImage
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

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage
    from image_service.core.provenance.dsse import SigningKeys
    from image_service.server.serving.digests import Digests

CACHE_BYTES = 16 * 1024 * 1024
"""Of all cached statements: one has some 80 KB for each GB of the base image, which are its block digests."""
MAX_BASES = 64


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
class StatedImage:
    """An image, and what its statement says beside its bytes.

    Args:
        time: when its customization was made; None: not known.
        layout: version of the byte layout.
        own: see `state_image`.
    """

    image: BootImage
    base: BaseImage
    time: datetime | None
    layout: int
    own: Purpose = Purpose.BOOT_RECORDS


@attrs.frozen
class _BaseDigests:
    """The SHA-256 of a base image, and of each block of it."""

    sha256: str
    blocks: tuple[str, ...]


class SignedStatements:
    """Signs statements, and keeps them.

    Args:
        digests: computes those of images, and runs the rest in its thread.
        get_keys: returns the keys as they are now.
        find_origin: returns where a base image came from.
    """

    def __init__(
        self, digests: Digests, get_keys: Callable[[], SigningKeys], find_origin: FindOrigin
    ) -> None:
        self._digests = digests
        self._get_keys = get_keys
        self._find_origin = find_origin
        self._cache: LruCache[str, Representation] = LruCache(
            CACHE_BYTES, lambda bundle: bundle.image.size + ENTRY_BYTES
        )
        self._making: SingleFlight[str, Representation] = SingleFlight()
        self._bases: LruCache[str, _BaseDigests] = LruCache(MAX_BASES)  # by their identity in ETags

    async def get(
        self, stated: StatedImage, load_config: Callable[[], Awaitable[bytes]], deadline: float
    ) -> Representation:
        """Return the bundle with the statement of an image.

        Args:
            load_config: returns the image's Ignition config; empty: it has none.

        Raises:
            ImageServiceError: as `Digests.get` and `load_config` raise; the base has too many bytes beneath
                the customization.
        """
        image, base = stated.image, stated.base
        signer = self._get_keys().signer
        # Equal bytes may be made at two times, and of a base with two names.
        names = f"{base.version} {image.file_name}"
        key = f"statement {signer.public.hint} {image.etag} {stated.time} {stated.layout} {names}"
        found = self._cache.get(key)
        if found is not None:
            return found
        config = await load_config()
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
                time=stated.time,
                layout=stated.layout,
                own=stated.own,
            )
            return sign_bundle(signer, render_statement(statement))

        async def make() -> Representation:
            bundle = self._cache[key] = _represent(await self._digests.run(sign), image, stated.time)
            return bundle

        return await self._digests.wait(self._making.join(key, make), "the statement", deadline)

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
