"""A virtual machine that boots the test ISO and reports what it found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tests.acceptance.clients import needs_client, run_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOST = "10.0.2.2"
"""How a guest reaches the machine that it runs on."""
NETWORK = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
_TIMEOUT_SECONDS = 900
# Emulation, because hardware virtualization is not everywhere; a boot takes some 5 s on a fast machine. The
# BIOS of the older machine, `pc`, reads a CD by words through a port, which takes half of the boot.
_MACHINE = ["-accel", "tcg", "-machine", "q35", "-m", "512", "-nodefaults", "-no-reboot"]
_MACHINE += ["-display", "none", "-serial", "stdio"]
_REPORT = re.compile(
    rb"report\n"
    rb"arguments: (?P<arguments>.*)\n"
    rb"config: (?P<config_digest>\w{64})?.*\n"
    rb"ramdisk: (?P<ramdisk>(?s:.*))\n"
    rb"nmstatectl: (?P<nmstatectl>.*)\n"
    rb"rootfs: (?P<rootfs_digest>\w{64})?.*\n"
    rb"begin: (?P<config>(?s:.*))\n"
    rb"end of report"
)


@attrs.frozen
class Report:
    """What the guest found; digests are SHA-256 in hexadecimal.

    Args:
        arguments: the kernel's command line.
        config_digest: of the Ignition config.
        config: its first 2 KiB.
        ramdisk: what the program in the ramdisk printed; empty: there is none.
        nmstatectl: what it printed; empty: there is none.
        rootfs_digest: of what is at the URL of the root file system; empty: there is no URL.
    """

    arguments: str
    config_digest: str
    config: bytes
    ramdisk: str
    nmstatectl: str
    rootfs_digest: str


def boot(*options: str) -> Report:
    """Run a machine until it has reported and powered itself off."""
    console = run_machine(*options)
    found = _REPORT.search(console)
    assert found, console.decode(errors="replace")
    text = {name: (value or b"").decode(errors="replace") for name, value in found.groupdict().items()}
    return Report(
        arguments=text["arguments"],
        config_digest=text["config_digest"],
        config=found["config"],
        ramdisk=text["ramdisk"],
        nmstatectl=text["nmstatectl"],
        rootfs_digest=text["rootfs_digest"],
    )


def run_machine(*options: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> bytes:
    """Run a machine until it has powered itself off; return what its serial console printed."""
    console = run_client("qemu-system-x86_64", *_MACHINE, *options, timeout_seconds=timeout_seconds)
    return console.replace(b"\r\n", b"\n")


def machine_command(*options: str) -> list[str]:
    """Return the command of a machine."""
    return [needs_client("qemu-system-x86_64"), *_MACHINE, *options]


def read_console(end: bytes, *options: str) -> bytes:
    """Run a machine until what its serial console has printed matches a pattern; return that."""
    console = b""
    with subprocess.Popen(machine_command(*options), stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            while not re.search(end, console) and (more := os.read(process.stdout.fileno(), 4096)):
                console += more
        finally:
            process.kill()
    return console


@contextmanager
def started(*options: str) -> Iterator[None]:
    """Run a machine, and kill it at the end of the block."""
    with subprocess.Popen(machine_command(*options), stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def firmware(
    name: str, directory: Path, variables: Path | None = None, *, ovmf: Path | None = None
) -> Sequence[str]:
    """Return qemu's options for SeaBIOS (``bios``) or OVMF with a writable variable store.

    ``uefi`` starts any program, ``secure boot`` those that Microsoft's keys have signed, such as Debian's
    shim.
    """
    if name == "bios":
        return []
    ovmf = ovmf or Path(needs_client("/usr/share/OVMF"))
    store = directory / "variables.fd"
    is_secure = name == "secure boot"
    variables = variables or ovmf / ("OVMF_VARS_4M.ms.fd" if is_secure else "OVMF_VARS_4M.fd")
    shutil.copyfile(variables, store)
    flash = "if=pflash,format=raw,file="
    code = f"{flash}{ovmf / ('OVMF_CODE_4M.secboot.fd' if is_secure else 'OVMF_CODE_4M.fd')},readonly=on"
    machine = "q35,smm=on" if is_secure else "q35"
    return ["-machine", machine, "-drive", code, "-drive", f"{flash}{store}"]


def medium(name: str, file: str) -> Sequence[str]:
    """Return qemu's options for a file or URL as CD (``cd``) or USB stick (``usb``)."""
    drive = f"format=raw,readonly=on,file={file}"
    if name == "cd":
        return ["-drive", f"if=none,id=cd,media=cdrom,{drive}", "-device", "ide-cd,drive=cd,bootindex=0"]
    stick = ["-device", "qemu-xhci", "-device", "usb-storage,drive=stick,bootindex=0"]
    return ["-drive", f"if=none,id=stick,{drive}", *stick]
