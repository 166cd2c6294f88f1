"""Checks of a live ISO: its family and config; of CoreOS also kernel, arguments and root file system."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import attrs

from image_service.core.errors import (
    BaseImageError,
    FormatError,
    IgnitionInvalid,
    InvalidArguments,
    TransferFailed,
    Unprocessable,
)
from image_service.core.extents import ExtentMap, FileExtent
from image_service.core.families.coreos.family import ROOTFS_URL
from image_service.core.families.coreos.ignition import read_ignition_version
from image_service.core.families.coreos.live_iso import is_coreos_iso, read_live_iso
from image_service.core.families.live.editing import INITRD_PATH, FatMedium
from image_service.core.families.live.families import detect_family
from image_service.core.families.live.medium import LiveMedium
from image_service.core.families.live.others import GENERIC
from image_service.core.formats.boot_configuration.finding import find_configs
from image_service.core.formats.initrd import read_members
from image_service.core.formats.reading import read_exactly
from image_service.tools.doctor.outcomes import failed, passed, skipped, warned
from image_service.tools.doctor.target import ImageUrl
from image_service.tools.doctor.web_client import WebClient

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from image_service.core.base_file import BaseFile
    from image_service.core.families.coreos.live_iso import LiveIso
    from image_service.core.families.live.family import LiveFamily
    from image_service.core.formats.boot_configuration.finding import Medium
    from image_service.core.formats.iso9660.volume import Iso9660
    from image_service.core.formats.reading import ReadAt
    from image_service.tools.doctor.outcomes import CheckOutcome

COREOS_CHECKS = ("architecture", "ignition", "kernel-arguments", "rootfs")

FAMILY_CHECKS = ("family", "config")

_CONFIG = "config.ign"
_MAX_REDIRECTS = 5


def read_coreos(iso: Iso9660, read_at: ReadAt, size: int) -> Generator[CheckOutcome, None, LiveIso | None]:
    """Return the layout of a CoreOS live ISO; else yield the outcomes of `COREOS_CHECKS` and return None."""
    if not is_coreos_iso(iso):
        yield from (skipped(name, "not a live ISO of CoreOS") for name in COREOS_CHECKS)
        return None
    try:
        return read_live_iso(read_at, size)
    except BaseImageError as error:
        remedy = "use the URL of a complete image, and compare its digest"
        yield from (failed(name, error.detail, remedy) for name in COREOS_CHECKS)
        return None


def check_coreos(
    layout: LiveIso, read_at: ReadAt, architecture: str | None, loaders: Iterable[str]
) -> Iterator[CheckOutcome]:
    """Yield the outcomes of `COREOS_CHECKS`.

    Args:
        architecture: of the kernel; None: not known.
        loaders: architectures of the image's programs for UEFI.
    """
    yield _check_architecture(architecture, set(loaders))
    yield _check_ignition(layout, read_at)
    arguments = ""
    kargs = layout.kernel_arguments
    if kargs is None:
        yield skipped("kernel-arguments", "the ISO has no areas for them")
    else:
        try:
            arguments = kargs.read(read_at)
        except FormatError as error:
            yield failed("kernel-arguments", error.detail, "make the image again")
        else:
            count, length = len(arguments.split()), len(arguments.encode())
            detail = f"{count} arguments, {length} of {kargs.size - 1} bytes, equal in all boot loaders"
            yield passed("kernel-arguments", detail)
    yield _check_rootfs(layout, arguments)


def _check_architecture(of_kernel: str | None, loaders: set[str]) -> CheckOutcome:
    name = "architecture"
    if of_kernel is None:
        return skipped(name, "not known: the kernel does not show it")
    if loaders and of_kernel not in loaders:
        detail = f"the kernel is for {of_kernel}, the UEFI loader for {', '.join(sorted(loaders))}"
        return failed(name, detail, "make the image again")
    return passed(name, of_kernel)


def _check_ignition(layout: LiveIso, read_at: ReadAt) -> CheckOutcome:
    """Parse the config, and show no more than version and sizes: it has secrets."""
    name, area = "ignition", layout.ignition
    try:
        members = read_members(read_exactly(read_at, area.offset, area.length))
    except FormatError as error:
        return failed(name, error.detail, "make the image again")
    if _CONFIG not in members:
        remedy = "use the URL of an image that was customized: this one boots to a console, and waits"
        return warned(name, f"the area of {area.length} bytes has no config", remedy)
    config = members[_CONFIG].data
    try:
        version = read_ignition_version(config)
    except IgnitionInvalid as error:
        return failed(name, error.detail, "correct the config, and make the image again")
    return passed(name, f"version {version}, {len(config)} bytes, in an area of {area.length} bytes")


def _check_rootfs(layout: LiveIso, arguments: str) -> CheckOutcome:
    name = "rootfs"
    urls = [word.removeprefix(ROOTFS_URL) for word in arguments.split() if word.startswith(ROOTFS_URL)]
    if not urls:
        if layout.files.rootfs:
            return passed(name, f"in the ISO, {layout.files.rootfs.length} bytes")
        return warned(name, "neither in the ISO nor at a URL in its kernel arguments", "use another image")
    remedy = "correct the base URL of the service that makes the image, or open the firewall"
    try:
        url = ImageUrl.parse(urls[-1])
        status, length = _ask_for(url)
    except (InvalidArguments, TransferFailed) as error:
        return failed(name, f"the kernel argument's URL cannot be read: {error.detail}", remedy)
    if status != HTTPStatus.OK or not length:
        return failed(name, f"{url.shown}: HEAD is answered with {status}, length {length}", remedy)
    return passed(name, f"{url.shown} has {length} bytes; from here, the machine may have other ways")


def _ask_for(url: ImageUrl) -> tuple[int, int | None]:
    """Return status and length of a URL, as curl finds them; its certificate is not verified."""
    for _ in range(_MAX_REDIRECTS):
        with WebClient(url) as client:
            reply = client.request("HEAD")
        if "location" not in reply.fields or reply.status == HTTPStatus.OK:
            return reply.status, reply.content_length
        url = url.follow(reply.fields["location"])
    raise TransferFailed(f"more than {_MAX_REDIRECTS} redirects")


@attrs.frozen
class _ServedImage:
    """What is read of a base image: the rest of `BaseFile` is for those that serve one."""

    read_at: ReadAt
    size: int
    residency: None = None  # it is read where it is served


def check_family(iso: Iso9660, read_at: ReadAt, size: int) -> Iterator[CheckOutcome]:
    """Yield the outcomes of `FAMILY_CHECKS`; of a config, no more than its paths: it has secrets."""
    if is_coreos_iso(iso):
        yield passed("family", "CoreOS")
        yield skipped("config", "of CoreOS: see ignition")
        return
    file = cast("BaseFile", _ServedImage(read_at, size))
    try:
        medium = LiveMedium(ExtentMap((FileExtent(file, 0, size),)))
        family = detect_family(medium)
        if family is not GENERIC:
            yield passed("family", family.name)
            yield _check_config(medium, family)
            return
        reason = f"none that is known has the volume {medium.volume_id!r}"
    except FormatError as error:
        reason = error.detail
    yield skipped("family", reason)
    yield skipped("config", "the family is not known")


def _check_config(medium: LiveMedium, family: LiveFamily) -> CheckOutcome:
    name = "config"
    try:
        edit = family.place(medium, b"")
    except Unprocessable as error:
        return skipped(name, error.detail)
    paths = [*edit.files, *([INITRD_PATH] if edit.initrd else []), *edit.efi_files]
    if not paths:
        return skipped(name, f"the family {family.name} reads its {family.config} from config.iso")
    fats = [FatMedium(image) for image in medium.efi_images]
    absent = [path for path in paths if not medium.has(path) and all(fat.read(path) is None for fat in fats)]
    remedy = "use the URL of an image that was customized: this one asks, unless another medium has a config"
    if absent:
        return warned(name, f"the ISO has no {absent[0]}, for a {family.config}", remedy)
    media: tuple[Medium, ...] = (medium, *fats)
    menus = [config.content for each in media for config in find_configs(each).files]
    lost = [text for text in edit.boot.append if not any(text.encode() in menu for menu in menus)]
    if lost:
        return warned(name, f"no boot configuration has the argument {lost[0]}", remedy)
    return passed(name, f"a {family.config}: {', '.join(paths)}")
