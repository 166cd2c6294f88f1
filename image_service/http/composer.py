"""From a reference to a boot image: base image and customization found, the one laid over the other."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.errors import NotFound, RamdiskTooLarge
from image_service.images.canvas import derived_minimal_canvas, full_canvas, virtual_minimal_canvas
from image_service.images.compose import compose
from image_service.images.netboot import artifact, initrd_addrsize, pxe_initrd
from image_service.images.reference import DEFAULT_ARCHITECTURE, ArtifactRef, ImageRef, Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from image_service.images.base import BaseImage, NmstateImage
    from image_service.images.boot_image import BootImage
    from image_service.images.canvas import Canvas
    from image_service.images.customization import Customization
    from image_service.images.reference import Credentials

THREAD_BYTES = 128 * 1024
"""A config larger than this is composed in a thread: one of a MB takes half a second to compress."""
_NEVER_MINIMAL = frozenset({"s390x"})


class InfraEnv(Protocol):
    """What an infra-env says about its image."""

    @property
    def openshift_version(self) -> str | None:
        """Its own, if it has one."""

    @property
    def kind(self) -> Kind | None:
        """What it is downloaded as."""

    @property
    def architecture(self) -> str | None:
        """RPM architecture name."""


class Customizations(Protocol):
    """Where customizations come from."""

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """What the infra-env says about itself."""

    async def get(self, infra_env_id: str, kind: Kind, credentials: Credentials | None) -> Customization:
        """All that makes its image of one kind."""


class Catalog(Protocol):
    """Where base images come from."""

    def find(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        """The base image for a kind of boot image, ready to serve; raises where there is none."""


class Templates(Protocol):
    """What is derived from base images: there, or being made, which raises Unavailable."""

    def minimal_iso(self, base: BaseImage) -> BaseImage:
        """A minimal ISO with room for a ramdisk, and nmstatectl where the base needs it."""

    def nmstate(self, base: BaseImage) -> NmstateImage:
        """An initrd with nmstatectl."""


@attrs.frozen(eq=False)
class Composer:
    """Makes boot images.

    Args:
        catalog: base images.
        templates: what is derived from them.
        customizations: what is laid over them.
        in_thread: runs a composition that takes a while.
        base_url: the URL that clients reach this service by, without a slash at its end.
    """

    catalog: Catalog
    templates: Templates
    customizations: Customizations
    in_thread: Callable[[Callable[[], BootImage]], Awaitable[BootImage]]
    base_url: str

    def artifact(self, ref: ArtifactRef) -> BootImage:
        """Give a file of a base image.

        Args:
            ref: which.

        Returns:
            the file, as it is.

        Raises:
            ImageServiceError: there is no such base image or file, or not yet.
        """
        return artifact(self.catalog.find(ref.version, ref.architecture, Kind.FULL_ISO), ref.artifact)

    async def resolve(self, ref: ImageRef, credentials: Credentials | None) -> ImageRef:
        """Let the infra-env say what the request leaves to it.

        Args:
            ref: which image.
            credentials: who asks.

        Returns:
            a reference that leaves nothing open.

        Raises:
            ImageServiceError: nobody says which version, or the infra-env could not be had.
        """
        if ref.version is not None and ref.kind is not None and ref.architecture is not None:
            return ref
        infra_env = await self.customizations.infra_env(ref.infra_env_id, credentials)
        version = ref.version or infra_env.openshift_version
        if version is None:
            raise NotFound("neither the request nor the infra-env names a version")
        architecture = ref.architecture or infra_env.architecture or DEFAULT_ARCHITECTURE
        return ImageRef(ref.infra_env_id, version, architecture, ref.kind or infra_env.kind or Kind.FULL_ISO)

    async def image(self, ref: ImageRef, credentials: Credentials | None) -> BootImage:
        """Make an image.

        Args:
            ref: which; nothing left open.
            credentials: who asks.

        Returns:
            the image.

        Raises:
            ImageServiceError: there is no such base image or customization, or they do not go together.
        """
        base, kind = self._find_base(ref)
        customization = await self.customizations.get(ref.infra_env_id, kind, credentials)
        if kind is Kind.MINIMAL_ISO:
            return await self._minimal_iso(base, customization, ref)
        if kind is Kind.PXE_INITRD:
            nmstate = base.needs_nmstate and customization.ramdisk
            archive = self.templates.nmstate(base) if nmstate else None
            return pxe_initrd(base, archive, customization, _file_name(ref, base))
        return await self._compose(full_canvas(base), customization, _file_name(ref, base))

    def initrd_addrsize(self, ref: ImageRef, initrd: BootImage) -> BootImage:
        """Tell where an initrd is loaded, and how long it is.

        Args:
            ref: which; nothing left open.
            initrd: the one that it is about.

        Returns:
            16 bytes.

        Raises:
            ImageServiceError: the base image has no such file.
        """
        base, _ = self._find_base(ref)
        return initrd_addrsize(base, initrd, _file_name(ref, base))

    def _find_base(self, ref: ImageRef) -> tuple[BaseImage, Kind]:
        if ref.version is None or ref.architecture is None or ref.kind is None:
            raise NotFound("the reference leaves open which base image is meant")
        if ref.kind is Kind.MINIMAL_ISO and ref.architecture in _NEVER_MINIMAL:
            raise NotFound(
                f"there is no {ref.kind.value} for {ref.architecture}, which loads one initrd that nothing"
                f" can be added to; ask for {Kind.FULL_ISO.value}"
            )
        return self.catalog.find(ref.version, ref.architecture, ref.kind), ref.kind

    async def _minimal_iso(self, base: BaseImage, customization: Customization, ref: ImageRef) -> BootImage:
        """Splice it from the base where that can be done, else take one that was derived."""
        file_name = _file_name(ref, base)
        rootfs_url = f"{self.base_url}/boot-artifacts/{base.version}/{base.architecture}/rootfs.img"
        lacks_nmstate = base.needs_nmstate and customization.ramdisk is not None
        if base.layout.minimal and not lacks_nmstate:
            with suppress(RamdiskTooLarge):  # the derived one has more room
                canvas = virtual_minimal_canvas(base, rootfs_url)
                return await self._compose(canvas, customization, file_name)
        template = self.templates.minimal_iso(base)
        return await self._compose(
            derived_minimal_canvas(base, template, rootfs_url), customization, file_name
        )

    async def _compose(self, canvas: Canvas, customization: Customization, file_name: str) -> BootImage:
        work = partial(compose, canvas, customization, file_name)
        return await self.in_thread(work) if len(customization.ignition) > THREAD_BYTES else work()


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
