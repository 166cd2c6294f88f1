"""Checks of Linux: kernel arguments, initrd, references to file systems, agents, and CoreOS's Ignition."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.core.families.coreos.ignition import FIRST_BOOT_FILE
from image_service.core.families.coreos.platforms import PLATFORM_ARGUMENT
from image_service.core.formats.disk.partition_types import ROOT_ARCHITECTURES
from image_service.core.formats.filesystems.file_tree import find_node
from image_service.toolkit.validation.device_names import TAGS, DeviceName, judge_device
from image_service.toolkit.validation.disk_checks import find_architectures
from image_service.toolkit.validation.root_files import has_file, has_usr, read_text
from image_service.toolkit.validation.verdicts import CannotTell, Finding, fail, ok

if TYPE_CHECKING:
    from image_service.toolkit.validation.facts import DiskFacts
    from image_service.toolkit.validation.platforms import Platform

_SHOWN = 120
_DEVICE_NUMBER = re.compile(r"[0-9a-f]{3,8}|[0-9]{1,4}:[0-9]{1,7}")
_FSTAB_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")  # of a byte, in octal
_CANNOT_STOP_BOOT = {"nofail", "noauto"}


def check_root_file_system(facts: DiskFacts, _platform: Platform) -> Finding:
    """Check that the root file system is on the disk, and that the kernel finds it by label or UUID."""
    entry = facts.entry()
    if not entry.values("root") and facts.is_coreos():
        if facts.content.find_volume("root"):
            return ok("CoreOS finds its root file system by the label root")
        return fail("no file system has the label root, by which CoreOS finds it")
    root = entry.last("root")
    if root is None or root == "gpt-auto":
        return _check_discoverable_root(facts)
    root = root.replace('"', "")
    judged = judge_device(root, facts.content)
    if judged is DeviceName.HARDWARE or _DEVICE_NUMBER.fullmatch(root):
        return fail(
            f"the kernel argument root={root[:_SHOWN]} names a device, whose name differs on other machines"
        )
    if judged is DeviceName.ON_DISK:
        return ok(f"root={root[:_SHOWN]} is on the disk")
    if judged is DeviceName.MISSING:
        return fail(f"root={root[:_SHOWN]} is not on the disk")
    if root.partition("=")[0] in TAGS:
        raise CannotTell(f"root={root[:_SHOWN]} may be in a volume that cannot be read")
    raise CannotTell(f"root={root[:_SHOWN]} is neither a device nor a UUID or label")


def _check_discoverable_root(facts: DiskFacts) -> Finding:
    """Check that systemd finds the root by its partition's type, where nothing names it."""
    kernels = set(find_architectures(facts).values())
    for volume in facts.content.volumes:
        architecture = ROOT_ARCHITECTURES.get(volume.partition.type) if volume.partition else None
        if architecture and (not kernels or architecture in kernels):
            return ok(f"without root=, systemd finds {volume.partition} by its type, Linux root")
    raise CannotTell("the kernel arguments of the boot entry have no root=: the initrd may find it by itself")


def check_fstab(facts: DiskFacts, _platform: Platform) -> Finding:
    """Check that /etc/fstab names no devices by the hardware, and none that is not there."""
    texts = [text for root in facts.roots() if (text := read_text(root, "etc/fstab")) is not None]
    if not texts:
        raise CannotTell("the operating system has no /etc/fstab")
    lines = [line.split() for text in texts for line in text.splitlines() if line.split()]
    lines = [fields for fields in lines if not fields[0].startswith("#")]
    names = {
        _unescape(fields[0])
        for fields in lines
        if not _CANNOT_STOP_BOOT & set(",".join(fields[3:4]).split(","))
    }
    judged = {name: judge_device(name, facts.content) for name in sorted(names)}

    def told(which: DeviceName) -> str:
        return ", ".join(name for name, each in judged.items() if each is which)[: 4 * _SHOWN]

    if hardware := told(DeviceName.HARDWARE):
        return fail(f"/etc/fstab names devices, whose names differ on other machines: {hardware}")
    if missing := told(DeviceName.MISSING):
        return fail(f"/etc/fstab names file systems that are not on the disk: {missing}")
    unknown = [name for name, each in judged.items() if each is DeviceName.UNKNOWN and _is_device(name)]
    if unknown:
        raise CannotTell(
            f"/etc/fstab names {unknown[0][:_SHOWN]}, which may be in a volume that cannot be read"
        )
    return ok(f"no line of /etc/fstab ({len(lines)}) names a device")


def _unescape(field: str) -> str:
    r"""Return a field of fstab with the bytes of its escapes: a blank is ``\040``."""
    plain = _FSTAB_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field.encode())
    return plain.decode(errors="replace")


def _is_device(name: str) -> bool:
    return name.startswith("/dev/") or name.partition("=")[0] in TAGS


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
    if facts.entry().has_unknown_initrds:
        raise CannotTell(f"{', '.join(missing)} may be in an initrd that a variable of GRUB names")
    if drivers.builtin is None:
        contents = "other modules" if drivers.has_modules else "no modules"
        raise CannotTell(
            f"the initrd has {contents} and no modules.builtin:"
            f" {', '.join(missing)} may be built into the kernel"
        )
    return fail(f"neither initrd nor kernel has {', '.join(missing)}")


def check_console(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that the kernel writes to a console that the platform shows."""
    entry = facts.entry()
    names = [value.partition(",")[0] for value in entry.values("console")]
    told = ", ".join(f"console={name}" for name in names) or "no console="
    if platform.has_any_console:
        return ok(f"any console fits {platform.title}; the kernel arguments have {told}")
    if platform.consoles:
        if set(names) & set(platform.consoles):
            return ok(f"the kernel arguments have {told}")
        entry.require_known()
        wanted = " or ".join(f"console={name}" for name in platform.consoles)
        return fail(
            f"{platform.title} shows a serial port: the kernel arguments have {told}, and need {wanted}"
        )
    if not {"tty0", "tty1"}.intersection(names):
        entry.require_known()
        if names:
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
        if not has_usr(root):
            raise CannotTell("/usr is empty: it is another file system, which cannot be read")
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
    root = facts.entry().choice.volume.root
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
