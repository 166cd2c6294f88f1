"""An ISO file as a value of the library: ``from image_service import IsoCustomization, open_iso``."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.common.files.atomic import atomic_target
from image_service.common.files.local_file import LocalFile
from image_service.core.errors import BaseImageError
from image_service.core.families.coreos.family import COREOS
from image_service.core.families.coreos.ignition import check_ignition
from image_service.core.families.coreos.kargs import find_ineffective
from image_service.core.families.coreos.live_iso import LiveIso, detect_architecture, read_features
from image_service.core.families.coreos.network_keyfiles import FEATURE, check_keyfile_name, pack_keyfiles
from image_service.core.images.base_image import BaseImage
from image_service.core.images.base_layout import read_base_layout
from image_service.core.images.canvas import full_canvas, spliced_minimal_canvas
from image_service.core.images.compose import compose
from image_service.core.images.live import compose_live
from image_service.tools.iso.customization import check_rootfs_url
from image_service.tools.iso.description import (
    UNKNOWN,
    Description,
    describe_coreos,
    with_checked_minimal,
)
from image_service.tools.iso.other_description import OtherDescription, describe_other
from image_service.tools.iso.writing import CHUNK_BYTES, write_extents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.base_file import BaseFile
    from image_service.core.extents import ExtentMap
    from image_service.core.families.coreos.kargs import KernelArgument
    from image_service.core.images.boot_areas import BootArea
    from image_service.core.images.canvas import Canvas
    from image_service.core.images.customization import Customization
    from image_service.tools.iso.customization import IsoCustomization


@contextmanager
def open_iso(path: str | os.PathLike[str], family: str | None = None) -> Iterator[IsoFile]:
    """Open an ISO, which may be customized already; what is made of it can be read until the block ends.

    It reads the ISO's directories only, and never changes the file::

        with open_iso("live.iso") as iso:
            customization = IsoCustomization(config=b'{"ignition": {"version": "3.4.0"}}')
            image = iso.customize(customization)
            first_mebibyte = image.read(0, 1 << 20)
            image.write("customized.iso")

    Args:
        family: ``coreos``, ``debian-installer``, … as in docs/families.md; None: the one that recognizes it.

    Raises:
        BaseImageError: it is not an ISO that can be customized; says why.
        OSError: it cannot be read.
    """
    try:
        file = LocalFile.open(Path(path))
    except BaseImageError as error:
        raise BaseImageError(f"{os.fspath(path)} {error.detail}") from None
    try:
        yield IsoFile.read(file, os.fspath(path), family)
    finally:
        file.close()
        # A later read is an error then; the system gives the number to the next file that is opened.
        object.__setattr__(file, "descriptor", -1)


@attrs.frozen(eq=False)
class IsoFile:
    """An open ISO; its path is for messages."""

    base: BaseImage
    path: str

    @classmethod
    def read(cls, file: BaseFile, path: str, family: str | None = None) -> IsoFile:
        """Read the layout of an open file; see `open_iso`."""
        try:
            found, layout = read_base_layout(file, family)
            is_coreos = isinstance(layout, LiveIso)
            architecture = detect_architecture(file.read_at, layout.files) if is_coreos else None
        except BaseImageError as error:
            raise BaseImageError(f"{path}: {error.detail}") from None
        return cls(BaseImage(file, layout, "", Path(path).name, architecture or UNKNOWN, family=found), path)

    @property
    def family(self) -> str:
        """The name of its family, as in docs/families.md."""
        return self.base.family.name if self.base.family else COREOS

    @property
    def size(self) -> int:
        """Bytes."""
        return self.base.file.size

    def inspect(self) -> Description | OtherDescription:
        """Describe it: `Description` of CoreOS, `OtherDescription` of another family.

        Raises:
            BaseImageError: it cannot be read.
            OSError: same.
        """
        if self.base.family is None:
            return describe_coreos(self.base)
        return describe_other(self.base, self.base.family)

    def customize(self, customization: IsoCustomization, *, reset: bool = False) -> CustomizedIso:
        """Lay a customization over the ISO; nothing is written.

        Args:
            reset: replace the customization that the ISO has already, which is otherwise refused.

        Raises:
            BaseImageError: the ISO does not take such a customization.
            Unprocessable: the customization is invalid, or does not fit.
        """
        laid_over = self.lay_over(customization, reset=reset)
        if self.base.family is not None:
            image = compose_live(self.base, laid_over, "", more=customization.medium_edit)
            return CustomizedIso(image.extents, self.base.file, (), image.areas)
        return self._compose(full_canvas(self.base), laid_over)

    def customize_minimal(self, customization: IsoCustomization, rootfs_url: str) -> CustomizedIso:
        """Lay a customization over the minimal ISO of a pristine CoreOS ISO; nothing is written.

        It lacks the root file system, which the machine fetches when it boots. Its recipe, which is in the
        ISO, is checked: that reads the ISO once.

        Args:
            rootfs_url: where the machine fetches ``images/pxeboot/rootfs.img`` of the same ISO.

        Raises:
            BaseImageError: the ISO has no usable recipe of a minimal one, or does not take such a
                customization.
            Unprocessable: the customization or the URL is invalid, or the customization does not fit.
        """
        laid_over = self.lay_over(customization)
        if self.base.family is not None:
            raise BaseImageError(f"{self.path} is of the family {self.family}: minimal ISOs are for CoreOS")
        check_rootfs_url(rootfs_url)
        return self._compose(spliced_minimal_canvas(with_checked_minimal(self.base), rootfs_url), laid_over)

    def _compose(self, canvas: Canvas, laid_over: Customization) -> CustomizedIso:
        absent = find_ineffective(canvas.arguments, laid_over.kernel_arguments)
        image = compose(canvas, laid_over, "")
        return CustomizedIso(image.extents, self.base.file, tuple(absent), image.areas)

    def lay_over(self, customization: IsoCustomization, *, reset: bool = False) -> Customization:
        """Check that the ISO takes a customization, and return it as images are composed of it."""
        if self.base.family is not None:
            if customization.ramdisk is not None or customization.network_keyfiles:
                raise BaseImageError(
                    f"{self.path} is of the family {self.family}: ramdisks and keyfiles are for CoreOS"
                )
            return customization.to_lay_over(None)
        edit = customization.medium_edit
        if edit.files or edit.initrd or edit.efi_files:
            raise BaseImageError(
                f"{self.path} is of CoreOS, whose Ignition config writes files: files on the medium, in one"
                " more initrd or in the EFI system partition are for other families"
            )
        if customization.config is not None:
            check_ignition(customization.config)
        ramdisk = customization.ramdisk
        if customization.network_keyfiles:
            ramdisk = self._pack_keyfiles(customization)
        if self.base.coreos.customized and not reset:
            raise BaseImageError(
                f"{self.path} is already customized: {self.base.coreos.customized}; use the pristine image,"
                " or reset it"
            )
        return customization.to_lay_over(ramdisk)

    def _pack_keyfiles(self, customization: IsoCustomization) -> bytes:
        if customization.ramdisk is not None:
            raise BaseImageError("a ramdisk and keyfiles: only one of them is possible")
        for name in customization.network_keyfiles:
            check_keyfile_name(name)
        features = read_features(self.base.file.read_at, self.base.file.size) or {}
        if not features.get(FEATURE):
            raise BaseImageError(f"{self.path} does not support keyfiles: it lacks {FEATURE}")
        return pack_keyfiles(dict(customization.network_keyfiles))


@attrs.frozen(eq=False)
class CustomizedIso:
    """An ISO with its customization, of which no byte is stored.

    Args:
        extents: its bytes.
        base: the file below, which must stay open while bytes are read.
        ineffective: kernel arguments that were to be deleted or replaced, and are absent.
        areas: its parts that a machine reads while it boots.
    """

    extents: ExtentMap
    base: BaseFile = attrs.field(repr=False)
    ineffective: tuple[KernelArgument, ...] = ()
    areas: tuple[BootArea, ...] = attrs.field(default=(), repr=False)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.extents.size

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of a range; fewer than `length` only at the end of the image.

        Raises:
            OSError: the base image cannot be read.
            ValueError: a number is negative.
        """
        if offset < 0 or length < 0:
            raise ValueError(f"offset {offset} and length {length} must not be negative")
        return self.extents.read_at(offset, length)

    def sha256(self) -> str:
        """Return the digest of the whole image, which reads all of it, in lower-case hex."""
        digest = hashlib.sha256()
        for offset in range(0, self.size, CHUNK_BYTES):
            digest.update(self.extents.read_at(offset, CHUNK_BYTES))
        return digest.hexdigest()

    def write(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the image to a file, which appears when it is complete.

        Raises:
            FileExistsError: it exists, and `overwrite` is False; or it is the base image.
            BaseImageError: the base image became shorter, or cannot be read.
            OSError: the file cannot be written; none is left.
        """
        target = Path(path)
        if target.exists():
            if os.path.samestat(target.stat(), os.fstat(self.base.descriptor)):
                raise FileExistsError(errno.EEXIST, "is the base image itself", os.fspath(path))
            if not overwrite:
                raise FileExistsError(errno.EEXIST, "exists", os.fspath(path))
        with atomic_target(target.resolve()) as temporary, temporary.open("xb", buffering=0) as file:
            write_extents(self.extents, file.fileno(), lambda _: None)
