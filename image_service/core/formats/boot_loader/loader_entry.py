"""Entries of the Boot Loader Specification, as GRUB's ``blscfg`` and systemd-boot read them.

Those of type 2 are unified kernel images (see `unified_kernel`), which systemd-boot orders like type 1.

A file ``loader/entries/NAME.conf`` has lines of a key, blanks and a value; ``#`` begins a comment. The two
loaders order the files differently:

GRUB            by the name, split at its last two hyphens into name, version and release, each as rpm's
systemd-boot    by ``sort-key``, ``machine-id`` and ``version``, then by the name with its suffix, in lower
                case; ``NAME+LEFT-DONE.conf`` counts the attempts to boot, and an entry with none left is last
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import attrs

from image_service.core.formats.boot_loader.version_order import VersionKey, rpm_version_key, uapi_version_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOADER_ENTRIES = "loader/entries"
LOADER_CONFIG = "loader/loader.conf"
ENTRY_SUFFIX = ".conf"

_COUNTER = re.compile(r"\+([0-9]+)(?:-[0-9]+)?(?=(?i:\.efi)?$)")
_NAME_PARTS = 3  # name, version, release


@attrs.frozen
class LoaderEntry:
    """An entry.

    Args:
        file: its name in the directory.
        values: by key, in the order of the file.
    """

    file: str
    values: Mapping[str, tuple[str, ...]]

    @property
    def stem(self) -> str:
        """The file's name without its suffix: GRUB's id of the entry."""
        return self.file.removesuffix(ENTRY_SUFFIX)

    def first(self, key: str) -> str:
        """Return the first value of a key; "" if there is none."""
        return self.values.get(key, ("",))[0]


def parse_loader_entry(file: str, text: str) -> LoaderEntry:
    """Return the entry in a file's text; lines without a value are skipped."""
    values: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        key, _, value = line.strip().replace("\t", " ").partition(" ")
        if value.strip() and not key.startswith("#"):
            values[key] = (*values.get(key, ()), value.strip())
    return LoaderEntry(file, values)


def grub_file_key(file: str) -> tuple[VersionKey, ...]:
    """Return the key by which GRUB orders the names of entries; its first menu item has the greatest."""
    parts = file.removesuffix(ENTRY_SUFFIX).rsplit("-", _NAME_PARTS - 1)
    return tuple(rpm_version_key(part) for part in (*parts, "", "")[:_NAME_PARTS])


def sort_for_systemd(entries: Iterable[LoaderEntry]) -> list[LoaderEntry]:
    """Return the entries in the order of systemd-boot's menu."""
    newest_first = sorted(entries, key=_systemd_version, reverse=True)
    return sorted(newest_first, key=_systemd_group)  # stable


def find_systemd_default(entries: Iterable[LoaderEntry], pattern: str) -> LoaderEntry | None:
    """Return the first of ordered entries whose name a pattern of loader.conf's ``default`` matches."""
    for entry in entries:
        name = _systemd_id(entry)
        if any(fnmatchcase(each, pattern.lower()) for each in (name, name.removesuffix(ENTRY_SUFFIX))):
            return entry
    return None


def _systemd_group(entry: LoaderEntry) -> tuple[bool, bool, str, str]:
    counter = _COUNTER.search(entry.stem)
    exhausted = counter is not None and not counter[1].strip("0")
    key = entry.first("sort-key")
    return exhausted, not key, key, entry.first("machine-id") if key else ""


def _systemd_version(entry: LoaderEntry) -> tuple[VersionKey, VersionKey]:
    version = entry.first("version") if entry.first("sort-key") else ""
    return uapi_version_key(version), uapi_version_key(_systemd_id(entry))


def _systemd_id(entry: LoaderEntry) -> str:
    """Return the name without a counter; its suffix puts ``arch.conf`` before ``arch-fallback.conf``."""
    return f"{_COUNTER.sub('', entry.stem)}{ENTRY_SUFFIX}".lower()
