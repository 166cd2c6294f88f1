"""Boots a disk in a virtual machine until its console shows a pattern.

The machine has no network, and writes into an overlay in the workspace: the image is opened read-only.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.common.programs.dependencies import require
from image_service.core.errors import FormatError
from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.toolkit.validation.disk_checks import find_architectures, find_boot_modes
from image_service.toolkit.validation.verdicts import CheckResult, Verdict
from image_service.toolkit.workspace.dependencies import OVMF_CODE, QEMU_IMG, QEMU_SYSTEM

if TYPE_CHECKING:
    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.validation.facts import DiskFacts
    from image_service.toolkit.validation.platforms import Platform
    from image_service.toolkit.workspace.workspace import Workspace

DEFAULT_PATTERN = r"login: |Reached target .*Multi-User|Ignition finished|Ignition: ran on"
"""A login prompt, systemd's target of a started system, or Ignition's message that it ran."""

ACCELERATORS = ("tcg", "kvm")
FIRMWARES = ("bios", "uefi")

_NAME = "boot"
_MACHINE_MEMORY = 2048  # MiB
_ADDRESS_SPACE = 8 << 30  # the machine's memory, and qemu's own
_KILL_SECONDS = 5
_TIMED_OUT = 124
_KILLED = 137
_CONSOLE_LINES = 20
_LINE_CHARACTERS = 200
_SEARCHED_BYTES = 4096
_KEPT_BYTES = 64 * 1024
_ESCAPE = re.compile(rb"\x1b(?:\[[0-9;?=]*[A-Za-z]|[()][A-Z0-9]|[=>78c])")
_UNPRINTABLE = re.compile("[^\t\n\x20-\x7e]")


@attrs.frozen
class BootTrial:
    """The machine and the signs of a trial boot.

    Args:
        pattern: of the console, a regular expression.
        seconds: until the machine is ended.
        firmware: one of `FIRMWARES`; None: BIOS if the disk has a loader for it.
        accelerator: one of `ACCELERATORS`.
    """

    pattern: re.Pattern[str]
    seconds: float
    firmware: str | None = None
    accelerator: str = "tcg"

    def require_programs(self) -> None:
        """Raise MissingDependency if a program is not installed."""
        require((QEMU_SYSTEM, QEMU_IMG, *(() if self.firmware == "bios" else (OVMF_CODE,))))


def try_boot(
    facts: DiskFacts, platform: Platform, trial: BootTrial, workspace: Workspace
) -> tuple[CheckResult, tuple[str, ...]]:
    """Boot a disk; return the verdict, and the last lines of the console.

    Args:
        facts: of the disk, whose image is open.
        platform: whose kind of disk the machine gets.

    Raises:
        MissingDependency: a program is not installed.
        ConversionFailed: qemu failed.
    """
    try:
        architectures, modes = find_architectures(facts), find_boot_modes(facts)
    except FormatError as error:
        return CheckResult(_NAME, Verdict.FAIL, error.detail), ()
    if architectures and "x86_64" not in architectures.values():
        told = ", ".join(f"{what} is {value}" for what, value in architectures.items())
        return CheckResult(_NAME, Verdict.SKIP, f"only x86_64 is booted: {told}"), ()
    if facts.image.disk.sector_bytes != SECTOR_BYTES:
        sectors = f"logical sectors of {facts.image.disk.sector_bytes} bytes"
        return CheckResult(_NAME, Verdict.SKIP, f"qemu does not read an image with {sectors}"), ()
    trial.require_programs()
    firmware = trial.firmware or ("uefi" if modes == ["uefi"] else "bios")
    console = _Console(trial.pattern)
    table = facts.content.table
    command = [
        *("timeout", "--foreground", f"--kill-after={_KILL_SECONDS}", f"{trial.seconds:g}"),
        *_machine(platform, trial.accelerator, table.sector_size if table else SECTOR_BYTES),
        *_disk(facts.image, workspace),
    ]
    if firmware == "uefi":
        command += _firmware(workspace.directory)
    workspace.progress.start("boot", 1)
    try:
        workspace.run(
            command,
            descriptors=[facts.image.descriptor],
            writes=[Path("/dev/kvm")] if trial.accelerator == "kvm" else [],
            on_output=console.receive,
            accepts=(0, _TIMED_OUT, _KILLED),
            address_space_bytes=_ADDRESS_SPACE,
        )
    except _PatternFoundError as found:
        text = f"the console showed {str(found)[:_LINE_CHARACTERS]!r} ({firmware.upper()}, {platform.device})"
        return CheckResult(_NAME, Verdict.OK, text), console.lines()
    finally:
        workspace.progress.finish()
    shown = "" if console.lines() else "; it showed nothing, for which the kernel needs console=ttyS0"
    text = f"the console did not show {trial.pattern.pattern!r} within {trial.seconds:g} s{shown}"
    return CheckResult(_NAME, Verdict.FAIL, f"{text} ({firmware.upper()})"), console.lines()


class _PatternFoundError(Exception):
    """The console showed the pattern; its text is the match. Ends the machine."""


class _Console:
    """The output of the machine's first serial port."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._kept = b""

    def receive(self, data: bytes) -> None:
        searched = len(data) + _SEARCHED_BYTES
        self._kept = (self._kept + data)[-_KEPT_BYTES:]
        if found := self._pattern.search(_printable(self._kept[-searched:])):
            raise _PatternFoundError(found[0])

    def lines(self) -> tuple[str, ...]:
        """Return the last lines that are not empty: printable, and cut to 200 characters."""
        lines = [line.strip()[:_LINE_CHARACTERS] for line in _printable(self._kept).splitlines()]
        return tuple(filter(None, lines))[-_CONSOLE_LINES:]


def _printable(console: bytes) -> str:
    text = _ESCAPE.sub(b"", console).decode("ascii", "replace").replace("\r", "\n")
    return _UNPRINTABLE.sub("", text)


def _machine(platform: Platform, accelerator: str, sector_size: int) -> list[str]:
    acceleration = "tcg,tb-size=256" if accelerator == "tcg" else accelerator
    device = f"{platform.device},drive=disk,bootindex=0"
    if sector_size != SECTOR_BYTES:
        device += f",logical_block_size={sector_size},physical_block_size={sector_size}"
    return [
        *(QEMU_SYSTEM.name, "-machine", "q35", "-accel", acceleration, "-m", str(_MACHINE_MEMORY)),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-nic", "none", "-display", "none", "-vga", "std"),
        *("-serial", "stdio", "-sandbox", "on,spawn=deny,elevateprivileges=deny"),
        *(("-device", platform.controller) if platform.controller else ()),
        *("-device", device),
    ]


def _disk(image: DiskImage, workspace: Workspace) -> list[str]:
    """Return qemu's arguments for the disk: an overlay in the workspace, over the image."""
    overlay = workspace.directory / "overlay.qcow2"
    size = -(-image.disk.virtual_size // SECTOR_BYTES) * SECTOR_BYTES
    workspace.run([QEMU_IMG.name, "create", "-q", "-f", "qcow2", overlay, str(size)])
    base = json.loads(image.source_for_qemu.removeprefix("json:"))
    node = {
        "driver": "qcow2",
        "node-name": "disk",
        "file": {"driver": "file", "filename": str(overlay)},
        "backing": {**base, "read-only": True},
    }
    return ["-blockdev", json.dumps(node)]


def _firmware(directory: Path) -> list[str]:
    """Return qemu's arguments for UEFI with a variable store of its own."""
    code = OVMF_CODE.find() or ""
    store = directory / "variables.fd"
    shutil.copyfile(code.replace("_CODE", "_VARS"), store)
    flash = "if=pflash,format=raw,file="
    return ["-drive", f"{flash}{code},readonly=on", "-drive", f"{flash}{store}"]
