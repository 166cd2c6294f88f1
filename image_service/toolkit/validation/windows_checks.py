"""Checks of Windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.toolkit.validation.root_files import has_file
from image_service.toolkit.validation.verdicts import CannotTell, Finding, fail, ok

if TYPE_CHECKING:
    from image_service.toolkit.validation.facts import DiskFacts
    from image_service.toolkit.validation.platforms import Platform

_START_TYPES = {0: "at boot", 1: "by the system", 2: "automatically", 3: "on demand", 4: "never"}
_AT_BOOT, _NEVER = 0, 4
_BCD_ON_ESP = "EFI/Microsoft/Boot/BCD"


def check_ntfs(facts: DiskFacts, _platform: Platform) -> Finding:
    """Check that Windows has unmounted its file systems."""
    windows = facts.windows()
    faults = [
        *(f"{name} is damaged: {reason}" for name, reason in windows.damaged.items()),
        *(f"{name} was not unmounted by Windows" for name in windows.dirty),
        *(f"{name} has a saved session (hibernation or fast startup)" for name in windows.hibernated),
    ]
    if faults:
        return fail("; ".join(faults))
    return ok(f"NTFS on {', '.join(windows.volumes)} is clean")


def check_bcd(facts: DiskFacts, _platform: Platform) -> Finding:
    """Check that Windows' boot manager has its store."""
    windows = facts.windows()
    if windows.boot_stores:
        return ok(f"{windows.boot_stores[0]} has Boot/BCD")
    for volume in facts.content.volumes:
        if volume.root and has_file(volume.root, _BCD_ON_ESP):
            return ok(f"the EFI system partition has {_BCD_ON_ESP}")
    if windows.system is None:
        raise CannotTell("no NTFS volume has Windows")
    return fail(f"neither a system partition with Boot/BCD nor an EFI system partition with {_BCD_ON_ESP}")


def check_windows_storage(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that a driver of the platform's disks starts at boot."""
    return _check_services(facts, platform.windows_storage, (_AT_BOOT,), "must start at boot")


def check_windows_network(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that a driver of the platform's network is not disabled."""
    if not platform.windows_network:
        raise CannotTell(f"the network cards of {platform.title} are not known")
    return _check_services(facts, platform.windows_network, range(_NEVER), "must not be disabled")


def _check_services(
    facts: DiskFacts, services: tuple[str, ...], right: tuple[int, ...] | range, needed: str
) -> Finding:
    windows = facts.windows()
    if windows.system is None:
        raise CannotTell("no NTFS volume has Windows' SYSTEM hive")
    if windows.hive_damage:
        return fail(f"the SYSTEM hive cannot be read: {windows.hive_damage}")
    starts = {name: windows.start_types[name] for name in services if name in windows.start_types}
    told = ", ".join(
        f"{name} starts {_START_TYPES.get(-1 if start is None else start, 'in no known way')}"
        for name, start in starts.items()
    )
    if any(start in right for start in starts.values()):
        return ok(told)
    installed = told or "none of them is installed"
    return fail(f"{' or '.join(services)} {needed}: {installed}")
