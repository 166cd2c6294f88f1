"""Composed images, kept by the bytes that they hold: what gave way is composed again, to the same bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.concurrency.single_flight import SingleFlight
from image_service.errors import NotFound, Unprocessable
from image_service.http.respond import Representation
from image_service.images.reference import Kind
from image_service.snapshots.versions import Composed

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.images.base import BaseImage
    from image_service.images.boot_image import BootImage
    from image_service.images.customization import Customization
    from image_service.snapshots.composer import Composer
    from image_service.snapshots.snapshot import Snapshot
    from image_service.snapshots.versions import Version

MAX_REFUSED = 1024
MAX_COMPOSING = 1024
"""Images that are composed at once; beyond that is more than can be made in time."""


class Lost(NotFound):
    """What a version was made of is not kept any more: it cannot be made again."""


class Customizations(Protocol):
    """Where customizations are kept."""

    async def customization(self, snapshot: Snapshot) -> Customization | None:
        """What a snapshot holds; None: it is not kept any more."""


class ComposedImages:
    """Composes, and keeps what was composed.

    Args:
        composer: composes.
        customizations: what is laid over base images.
        limit_bytes: what all composed images may hold in memory; the least recently used gives way.
        count: is told what happened, by a word, for metrics.
    """

    def __init__(
        self,
        composer: Composer,
        customizations: Customizations,
        limit_bytes: int,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._composer = composer
        self._customizations = customizations
        self._limit_bytes = limit_bytes
        self._composed: OrderedDict[Version, Composed] = OrderedDict()
        self._count = count
        self.held_bytes = 0
        self._refused: OrderedDict[Version, Unprocessable] = OrderedDict()
        self._composing: SingleFlight[Version, Composed] = SingleFlight(MAX_COMPOSING)

    def known(self, version: Version) -> Composed | None:
        """Give a version if it is composed.

        Args:
            version: which.

        Returns:
            it, as of now the most recently used; None: ``get`` it.
        """
        composed = self._composed.get(version)
        if composed is not None:
            self._composed.move_to_end(version)
        return composed

    async def get(self, version: Version) -> Composed:
        """Give a version, composed if need be.

        Args:
            version: which.

        Returns:
            it.

        Raises:
            Unprocessable: its customization cannot be laid over its base, and never will be.
            Lost: its customization is gone.
            ImageServiceError: it cannot be composed now.
        """
        composed = self.known(version)
        if composed is not None:
            return composed
        refusal = self._refused.get(version)
        if refusal is not None:
            raise refusal.copy()
        return await self._composing.join(version, lambda: self._make(version))

    def forget(self, base: BaseImage) -> None:
        """Let go of a base image; what is made of it is composed again when it is asked for.

        Args:
            base: this very one, not another of the same bytes.
        """
        for version in [version for version in self._composed if version.base is base]:
            self.held_bytes -= self._composed.pop(version).held_bytes
        for version in [version for version in self._refused if version.base is base]:
            del self._refused[version]

    async def _make(self, version: Version) -> Composed:
        try:
            composed = Composed(version, Representation(await self._image(version)))
        except Unprocessable as error:
            self._refused[version] = error.copy()
            while len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
            raise
        self._composed[version] = composed
        self.held_bytes += composed.held_bytes
        while self.held_bytes > self._limit_bytes and len(self._composed) > 1:
            _, oldest = self._composed.popitem(last=False)
            self.held_bytes -= oldest.held_bytes
            self._count("eviction")
        return composed

    async def _image(self, version: Version) -> BootImage:
        ref, base, snapshot = version.ref, version.base, version.snapshot
        if not ref.needs_customization:
            return self._composer.artifact(ref, base)
        if snapshot is None:
            msg = f"{ref} has no snapshot"
            raise TypeError(msg)
        if ref.kind is Kind.INITRD_ADDRSIZE:
            initrd = attrs.evolve(version, ref=attrs.evolve(ref, kind=Kind.PXE_INITRD))
            image = (await self.get(initrd)).representation.image
            return self._composer.initrd_addrsize(ref, base, image)
        customization = await self._customizations.customization(snapshot)
        if customization is None:
            raise Lost("the image that was being read is not there any more")
        return await self._composer.image(ref, base, customization)
