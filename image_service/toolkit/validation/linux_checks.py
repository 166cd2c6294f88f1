"""Checks of Linux: kernel arguments, initrd, references to file systems, agents, and CoreOS's Ignition."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.core.families.coreos.ignition import FIRST_BOOT_FILE
from image_service.core.families.coreos.platforms import PLATFORM_ARGUMENT
from image_service.core.formats.filesystems.file_tree import find_node
from image_service.toolkit.validation.boot_entry import has_file, read_text
from image_service.toolkit.validation.verdicts import CannotTell, Finding, fail, ok

if TYPE_CHECKING:
    from image_service.toolkit.validation.facts import DiskFacts
    from image_service.toolkit.validation.platforms import Platform

_SHOWN = 120
_DEVICE = re.compile(r"/dev/(?:x?vd|sd|hd|nvme|mmcblk)[a-z0-9]*")


def check_root_file_system(facts: DiskFacts, _platform: Platform) -> Finding:
    """Check that the root file system is on the disk, and that the kernel finds it by label or UUID."""
    roots = facts.entry().values("root")
    if not roots:
        if not facts.is_coreos():
            return fail("the kernel arguments of the boot entry have no root=")
        if facts.content.find_volume("root"):
            return ok("CoreOS finds its root file system by the label root")
        return fail("no file system has the label root, by which CoreOS finds it")
    root = roots[-1].strip('"')
    if _DEVICE.fullmatch(root):
        return fail(f"the kernel argument root={root} names a device, whose name differs on other machines")
    kind, _, value = root.partition("=")
    known = {
        "UUID": {each.file_system.uuid for each in facts.content.volumes if each.file_system},
        "LABEL": {each.file_system.label for each in facts.content.volumes if each.file_system},
        "PARTUUID": {each.partition.uuid for each in facts.content.volumes if each.partition},
        "PARTLABEL": {each.partition.name for each in facts.content.volumes if each.partition},
    }.get(kind)
    if known is None:
        raise CannotTell(f"root={root[:_SHOWN]} is neither a device nor a UUID or label")
    if value.lower() in {each.lower() for each in known}:
        return ok(f"root={root} is on the disk")
    return fail(f"root={root[:_SHOWN]} is not on the disk")


def check_fstab(facts: DiskFacts, _platform: Platform) -> Finding:
    """Check that /etc/fstab names no devices."""
    for root in facts.roots():
        text = read_text(root, "etc/fstab")
        if text is None:
            continue
        lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        devices = sorted({line[0] for line in lines if _DEVICE.fullmatch(line[0])})
        if devices:
            return fail(
                f"/etc/fstab names devices, whose names differ on other machines: {', '.join(devices)}"
            )
        return ok(f"no line of /etc/fstab ({len(lines)}) names a device")
    raise CannotTell("the operating system has no /etc/fstab")


def check_storage_driver(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that the initrd has the drivers of the platform's disks."""
    return _check_drivers(facts, platform.storage_drivers)


def check_network_driver(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that the initrd has the drivers of the platform's network, if Ignition runs in it."""
    if not facts.is_coreos():
        raise CannotTell("only CoreOS uses the network in its initrd; others load the driver from their root")
    return _check_drivers(facts, platform.network_drivers)


def _check_drivers(facts: DiskFacts, groups: tuple[tuple[str, ...], ...]) -> Finding:
    drivers = facts.initrd()
    present = drivers.modules | (drivers.builtin or frozenset())
    missing = [" or ".join(group) for group in groups if not present.intersection(group)]
    if not missing:
        found = [name for group in groups for name in group if name in present]
        return ok(f"the initrd or its kernel has {', '.join(found)}")
    if drivers.builtin is None:
        contents = "other modules" if drivers.has_modules else "no modules"
        raise CannotTell(
            f"the initrd has {contents} and no modules.builtin:"
            f" {', '.join(missing)} may be built into the kernel"
        )
    return fail(f"neither initrd nor kernel has {', '.join(missing)}")


def check_console(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that the kernel writes to a console that the platform shows."""
    names = [value.partition(",")[0] for value in facts.entry().values("console")]
    told = ", ".join(f"console={name}" for name in names) or "no console="
    if platform.has_any_console:
        return ok(f"any console fits {platform.title}; the kernel arguments have {told}")
    if platform.consoles:
        if set(names) & set(platform.consoles):
            return ok(f"the kernel arguments have {told}")
        wanted = " or ".join(f"console={name}" for name in platform.consoles)
        return fail(
            f"{platform.title} shows a serial port: the kernel arguments have {told}, and need {wanted}"
        )
    if names and not {"tty0", "tty1"}.intersection(names):
        return fail(
            f"{platform.title} shows the screen: the kernel arguments have {told}, and need console=tty0"
        )
    return ok(f"{platform.title} shows the screen; the kernel arguments have {told}")


def check_agent(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that a program of the image asks the platform for its configuration, or reports its state."""
    if not platform.agents:
        return ok(f"{platform.title} needs no agent")
    if _boots_coreos(facts):
        if facts.initrd().has_ignition:
            return ok("CoreOS is configured by Ignition, which is in its initrd")
        return fail("the kernel arguments are CoreOS's, and its initrd has no Ignition")
    names = " or ".join(dict.fromkeys(platform.agents.values()))
    for root in facts.roots():
        found = sorted({name for path, name in platform.agents.items() if has_file(root, path)})
        if found:
            return ok(f"{', '.join(found)} is installed")
    return fail(f"the operating system has no agent for {platform.title}: {names}")


def check_ignition_platform(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that CoreOS asks this platform for its Ignition config."""
    _require_coreos(facts)
    ids = facts.entry().values(PLATFORM_ARGUMENT)
    if ids == [platform.ignition_id]:
        return ok(f"{PLATFORM_ARGUMENT} is {platform.ignition_id}")
    found = f"is {', '.join(ids)[:_SHOWN]}" if ids else "is missing"
    return fail(f"{PLATFORM_ARGUMENT} {found}; {platform.title} needs {platform.ignition_id}")


def check_first_boot(facts: DiskFacts, _platform: Platform) -> Finding:
    """Check that CoreOS will run Ignition."""
    _require_coreos(facts)
    root = facts.entry().volume.root
    if root and FIRST_BOOT_FILE in find_node(root, "").entries():
        return ok(f"{FIRST_BOOT_FILE} is there: the first boot runs Ignition")
    return fail(f"{FIRST_BOOT_FILE} is missing: the disk has booted before, and will not run Ignition")


def _boots_coreos(facts: DiskFacts) -> bool:
    """Return True if the boot entry can be read and is CoreOS's."""
    try:
        return facts.is_coreos()
    except CannotTell:
        return False


def _require_coreos(facts: DiskFacts) -> None:
    if not facts.is_coreos():
        raise CannotTell("the boot entry is not CoreOS's: it names no platform of Ignition")
