"""Boot configurations on a medium: those in the places where boot loaders look, and what these include.

ISOLINUX      ``isolinux.cfg`` or ``syslinux.cfg`` in its own and a few other directories
GRUB          ``grub.cfg`` in ``boot/grub``, ``boot/grub2``, their directories of a platform, ``EFI/NAME``
systemd-boot  ``loader/loader.conf``, ``loader/entries/NAME.conf``
ESXi          ``boot.cfg``, ``EFI/BOOT/BOOT.CFG``

Paths are looked up without regard to case where no name has the same case, and a directory of packages is
never listed.
"""

from __future__ import annotations

import posixpath
import re
from collections import deque
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.core.errors import FormatUnread
from image_service.core.formats.boot_configuration import grub, syslinux
from image_service.core.formats.boot_configuration.boot_edit import ConfigFile, Dialect
from image_service.core.formats.boot_loader.loader_entry import ENTRY_SUFFIX, LOADER_CONFIG, LOADER_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_FILES = 128
MAX_LOOKUPS = 1024
MAX_DEPTH = 8
MAX_FILE_BYTES = 256 * 1024
MAX_BYTES = 1024 * 1024

_SYSLINUX_DIRECTORIES = (
    "",
    "boot/isolinux",
    "isolinux",
    "boot/syslinux",
    "syslinux",
    "boot/x86_64/loader",
    "boot/i386/loader",
    "extlinux",
    "EFI/BOOT",
)
_SYSLINUX_NAMES = ("isolinux.cfg", "syslinux.cfg", "extlinux.conf")
_GRUB_DIRECTORIES = ("boot/grub", "boot/grub2")
_GRUB_PLATFORM = re.compile(r"\w+-(?:efi|pc|ieee1275)")
_PACKAGES = {
    "apks",
    "appstream",
    "baseos",
    "casper",
    "dists",
    "live",
    "liveos",
    "packages",
    "pool",
    "repodata",
}
_OF_ESXI = re.compile(rb"^(?:kernelopt|modules)=", re.MULTILINE | re.IGNORECASE)


class Medium(Protocol):
    """The files of an ISO or of a FAT file system; paths begin without a slash."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""

    def list(self, path: str) -> Iterable[str]:
        """Return the names in a directory, which may be absent; "" is the root."""


@attrs.frozen
class FoundConfigs:
    """The boot configurations of a medium.

    Args:
        files: in the order of their paths.
        unresolved: ``FILE: PATH`` of includes that depend on variables of the machine.
    """

    files: tuple[ConfigFile, ...]
    unresolved: tuple[str, ...] = ()


@attrs.frozen
class _Place:
    """Where a configuration may be.

    Args:
        directory: to which SYSLINUX's names are relative, or GRUB's prefix.
        depth: of includes.
        variables: of GRUB, after the including file.
    """

    path: str
    dialect: Dialect
    directory: str = ""
    depth: int = 0
    variables: Mapping[str, str] = attrs.field(factory=dict)


def find_configs(medium: Medium, boot_images: Iterable[str] = ()) -> FoundConfigs:
    """Return the boot configurations of a medium.

    Args:
        medium: to search.
        boot_images: paths of El Torito's boot images, beside which ISOLINUX has its configuration.

    Raises:
        FormatUnread: there is more than the limits above allow.
    """
    paths = _MediumPaths(medium)
    places = deque(_known_places(paths, boot_images))
    files: dict[str, ConfigFile] = {}
    unresolved: dict[str, None] = {}
    while places:
        place = places.popleft()
        path = paths.find(place.path)
        if path is None or path in files:
            continue
        content = paths.read(path)
        if content is None or (place.dialect is Dialect.ESXI and not _OF_ESXI.search(content)):
            continue
        files[path] = ConfigFile(path, place.dialect, content)
        if len(files) > MAX_FILES or place.depth > MAX_DEPTH:
            raise FormatUnread(
                f"the medium has more than {MAX_FILES} boot configurations, or they include others more than"
                f" {MAX_DEPTH} deep"
            )
        for included in _included(place, path, content):
            if "$" in included.path:
                unresolved[f"{path}: {included.path:.200}"] = None
            else:
                places.append(included)
    return FoundConfigs(tuple(files[path] for path in sorted(files)), tuple(unresolved))


def _known_places(paths: _MediumPaths, boot_images: Iterable[str]) -> Iterator[_Place]:
    own = (posixpath.dirname(image.strip("/")) for image in boot_images)
    for directory in (*own, *_SYSLINUX_DIRECTORIES):
        for name in _SYSLINUX_NAMES:
            yield _Place(posixpath.join(directory, name), Dialect.SYSLINUX, directory)
    for directory in (*_GRUB_DIRECTORIES, *(f"EFI/{name}" for name in paths.names("EFI"))):
        yield _Place(f"{directory}/grub.cfg", Dialect.GRUB, directory)
    for directory in _GRUB_DIRECTORIES:
        for name in filter(_GRUB_PLATFORM.fullmatch, paths.names(directory)):
            yield _Place(f"{directory}/{name}/grub.cfg", Dialect.GRUB, directory)
    entries = [name for name in paths.names(LOADER_ENTRIES) if name.lower().endswith(ENTRY_SUFFIX)]
    for path in (LOADER_CONFIG, *(f"{LOADER_ENTRIES}/{name}" for name in entries)):
        yield _Place(path, Dialect.SYSTEMD_BOOT)
    for path in ("boot.cfg", "EFI/BOOT/BOOT.CFG"):
        yield _Place(path, Dialect.ESXI)


def _included(place: _Place, path: str, content: bytes) -> Iterator[_Place]:
    depth = place.depth + 1
    if place.dialect is Dialect.SYSLINUX:
        for name, directory in syslinux.find_included(content):
            there = posixpath.join("/", place.directory, directory)
            yield _Place(posixpath.join("/", place.directory, name), place.dialect, there, depth)
    elif place.dialect is Dialect.GRUB:
        variables = {"prefix": f"/{place.directory}", "root": "", **place.variables}
        variables["config_directory"] = f"/{posixpath.dirname(path)}"
        for name in dict.fromkeys(grub.find_sourced(content, variables)):
            yield _Place(name, place.dialect, place.directory, depth, variables)


class _MediumPaths:
    """Finds paths on a medium, without regard to case if necessary, and counts what it reads."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._names: dict[str, Mapping[str, str]] = {}
        self._bytes = 0

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; none if it is absent."""
        found = self.find(directory)
        return [] if found is None else sorted(set(self._list(found).values()))

    def find(self, path: str) -> str | None:
        """Return the path as the medium spells it; None if it is absent, or among packages."""
        found = ""
        for part in filter(None, posixpath.normpath(f"/{path}").split("/")):
            names = self._list(found)
            name = names.get(part) or names.get(part.casefold())
            if name is None or (not found and name.casefold() in _PACKAGES):
                return None
            found = posixpath.join(found, name)
        return found

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; FormatUnread if it is too large."""
        content = self._medium.read(path)
        self._bytes += len(content or b"")
        if len(content or b"") > MAX_FILE_BYTES or self._bytes > MAX_BYTES:
            raise FormatUnread(
                f"{path} has more than {MAX_FILE_BYTES} bytes, or all boot configurations have more than"
                f" {MAX_BYTES}"
            )
        return content

    def _list(self, directory: str) -> Mapping[str, str]:
        if directory not in self._names:
            if len(self._names) == MAX_LOOKUPS:
                raise FormatUnread(
                    f"the boot configurations name files in more than {MAX_LOOKUPS} directories"
                )
            names = sorted(self._medium.list(directory))
            self._names[directory] = {name.casefold(): name for name in names} | {
                name: name for name in names
            }
        return self._names[directory]
