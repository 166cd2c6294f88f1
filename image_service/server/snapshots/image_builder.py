"""The image builder: finds the base image of a boot image, and lays a customization over it."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.core.errors import FormatError, NotFound, RamdiskTooLarge
from image_service.core.families.coreos.family import WITHOUT_MINIMAL_ISO
from image_service.core.families.coreos.ignition import check_is_json
from image_service.core.formats.initrd_stream import check_ramdisk
from image_service.core.images.canvas import derived_minimal_canvas, full_canvas, spliced_minimal_canvas
from image_service.core.images.compose import TOO_LARGE, compose
from image_service.core.images.live import compose_config_medium, compose_live, compose_live_initrd
from image_service.core.images.netboot import compose_initrd_addrsize, compose_pxe_initrd
from image_service.core.images.reference import ImageRef, Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from image_service.core.errors import Unprocessable
    from image_service.core.images.base_image import BaseImage, NmstateImage
    from image_service.core.images.boot_image import BootImage
    from image_service.core.images.canvas import Canvas
    from image_service.core.images.customization import Customization
    from image_service.core.images.layouts import ByteLayout
    from image_service.core.images.reference import Ref

THREAD_BYTES = 128 * 1024
"""A config larger than this is composed in a thread: one of a MB takes half a second to compress."""


class BaseImageSource(Protocol):
    """Where base images come from."""

    def find_base_image(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        """Return the base image for a kind of boot image, ready to serve; raise if there is none."""

    def find_by_digest(self, sha256: str, kind: Kind) -> BaseImage | None:
        """Return the base image of these bytes, served or superseded, if there is exactly one."""


class DerivedFiles(Protocol):
    """Files derived from base images; raises Unavailable while one is being made."""

    def get_minimal_iso(self, base: BaseImage) -> BaseImage:
        """Return a minimal ISO with room for a ramdisk, and nmstatectl if the base needs it."""

    def get_nmstate_image(self, base: BaseImage) -> NmstateImage:
        """Return an initrd with nmstatectl."""


@attrs.frozen(eq=False)
class ImageBuilder:
    """Makes boot images.

    Args:
        in_thread: runs a composition that takes a while.
        get_base_url: returns the URL that clients reach this service by, without a slash at its end: for
            minimal ISOs whose snapshot has none.
    """

    catalog: BaseImageSource
    derived: DerivedFiles
    in_thread: Callable[[Callable[[], BootImage]], Awaitable[BootImage]]
    get_base_url: Callable[[], str]

    def find_base(self, ref: Ref) -> BaseImage:
        """Return the base image of a complete reference, ready to serve.

        Raises:
            ImageServiceError: there is none, or not yet; or no base has such an image.
        """
        if not ref.needs_customization:
            return self.catalog.find_base_image(ref.version, ref.architecture, Kind.FULL_ISO)
        if ref.version is None or ref.architecture is None or ref.kind is None:
            raise NotFound("the request names no version, architecture or kind of image")
        if ref.kind is Kind.MINIMAL_ISO and ref.architecture in WITHOUT_MINIMAL_ISO:
            raise NotFound(
                f"there is no {ref.kind.value} for {ref.architecture}, which loads one initrd that nothing"
                f" can be added to; ask for {Kind.FULL_ISO.value}"
            )
        return self.catalog.find_base_image(ref.version, ref.architecture, ref.kind)

    async def build(
        self, ref: ImageRef, base: BaseImage, customization: Customization, layout: ByteLayout
    ) -> BootImage:
        """Lay a customization over a base image.

        Raises:
            ImageServiceError: they do not fit, or something derived from the base is not ready.
        """
        image = await self._build(ref, base, customization, layout)
        if customization.ramdisk is None:
            return image
        return await self.in_thread(partial(_add_doubts, image, customization.ramdisk))

    async def _build(
        self, ref: ImageRef, base: BaseImage, customization: Customization, layout: ByteLayout
    ) -> BootImage:
        if ref.kind is Kind.CONFIG_ISO:
            name = f"{ref.infra_env_id}-config.iso"
            return await self.in_thread(partial(compose_config_medium, base, customization, name, layout))
        if base.family is not None:
            if ref.kind is Kind.PXE_INITRD:
                name = _file_name(ref, base)
                return await self.in_thread(partial(compose_live_initrd, base, customization, name, layout))
            if ref.kind is not Kind.FULL_ISO:
                raise NotFound(
                    f"{base.name} is of the family {base.family.name}, which has"
                    f" {Kind.FULL_ISO.value} and {Kind.CONFIG_ISO.value} only"
                )
            name = _file_name(ref, base)
            return await self.in_thread(partial(compose_live, base, customization, name, layout))
        if customization.ignition:
            check_is_json(customization.ignition, base.name)
        if ref.kind is Kind.MINIMAL_ISO:
            return await self._minimal_iso(base, customization, ref, layout)
        if ref.kind is Kind.PXE_INITRD:
            needs_nmstate = base.needs_nmstate and customization.ramdisk
            nmstate = self.derived.get_nmstate_image(base) if needs_nmstate else None
            return compose_pxe_initrd(base, nmstate, customization, _file_name(ref, base), layout)
        return await self._compose(full_canvas(base), customization, _file_name(ref, base), layout)

    @staticmethod
    def build_initrd_addrsize(
        ref: ImageRef, base: BaseImage, initrd: BootImage, layout: ByteLayout
    ) -> BootImage:
        """Return the load address and size of an initrd, 16 bytes; raises NotFound if the base has none."""
        return compose_initrd_addrsize(base, initrd, _file_name(ref, base), layout)

    async def _minimal_iso(
        self, base: BaseImage, customization: Customization, ref: ImageRef, layout: ByteLayout
    ) -> BootImage:
        """Splice it from the base if possible, else use a derived one."""
        file_name = _file_name(ref, base)
        base_url = customization.base_url or self.get_base_url()
        rootfs_url = f"{base_url}/boot-artifacts/{base.version}/{base.architecture}/rootfs.img"
        lacks_nmstate = base.needs_nmstate and customization.ramdisk is not None
        if base.coreos.minimal and not lacks_nmstate:
            with suppress(RamdiskTooLarge):  # the derived one has more room
                canvas = spliced_minimal_canvas(base, rootfs_url)
                return await self._compose(canvas, customization, file_name, layout, (RamdiskTooLarge,))
        template = self.derived.get_minimal_iso(base)
        return await self._compose(
            derived_minimal_canvas(base, template, rootfs_url), customization, file_name, layout
        )

    async def _compose(
        self,
        canvas: Canvas,
        customization: Customization,
        file_name: str,
        layout: ByteLayout,
        fixed: tuple[type[Unprocessable], ...] = (),
    ) -> BootImage:
        if len(customization.ignition) <= THREAD_BYTES:
            with suppress(*(kind for kind in TOO_LARGE if kind not in fixed)):
                return compose(canvas, customization, file_name, layout, fixed=TOO_LARGE)
        return await self.in_thread(partial(compose, canvas, customization, file_name, layout, fixed=fixed))


def _add_doubts(image: BootImage, ramdisk: bytes) -> BootImage:
    """Return an image with the doubts about its ramdisk, which may have been stored before it was checked."""
    try:
        doubts = check_ramdisk(ramdisk, "the ramdisk", time.monotonic)
    except FormatError as error:
        doubts = (error.detail,)
    return attrs.evolve(image, doubts=tuple(f"the machine may lack files: {doubt}" for doubt in doubts))


def _file_name(ref: ImageRef, base: BaseImage) -> str:
    match ref.kind:
        case Kind.DISCONNECTED_ISO:
            return f"agent-ove.{base.architecture}.iso"
        case Kind.PXE_INITRD:
            return f"{ref.infra_env_id}-initrd.img"
        case Kind.INITRD_ADDRSIZE:
            return f"{ref.infra_env_id}-initrd.addrsize"
        case _:
            return f"{ref.infra_env_id}-discovery.iso"
