"""The programs that acceptance tests drive: found on the machine, or reported as missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import NoReturn

import pytest

MISSING = "missing client: "

_TIMEOUT_SECONDS = 300  # a client that hangs fails its test before pytest's own limit ends the session
_TOLD_BYTES = 8000
_HOME_DIRECTORIES = [str(Path.home() / tool / "bin") for tool in (".cargo", "go")]
_SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), *_HOME_DIRECTORIES])
_TEMPORAL = "go install go.temporal.io/server/cmd/%s@v1.32.0, renamed"
_COMPILED = {
    "butane": "go build github.com/coreos/butane/internal",
    "nmstatectl": "cargo install nmstatectl",
    "coreos-installer": "cargo install coreos-installer",
    "cosign": "go install github.com/sigstore/cosign/v2/cmd/cosign",
    "crane": "go install github.com/google/go-containerregistry/cmd/crane",
    "nfpm": "go install github.com/goreleaser/nfpm/v2/cmd/nfpm",
    "oras": "go install oras.land/oras/cmd/oras",
    "temporal-server": _TEMPORAL % "server",
    "temporal-sql-tool": _TEMPORAL % "tools/sql",
    "uv": "pip install --group lock",
    "versitygw": "go install versitygw",
}

# What `make deps` installs for each; the rest of the programs are in packages of their own name.
_PACKAGES = {
    "apt-cache": "apt",
    "apt-get": "apt",
    "aria2c": "aria2",
    "blkid": "util-linux",
    "bwrap": "bubblewrap",
    "chromedriver": "chromium-driver",
    "ctr": "containerd",
    "debugfs": "e2fsprogs",
    "dumpe2fs": "e2fsprogs",
    "fdisk": "fdisk",
    "e2fsck": "e2fsprogs",
    "fsck.vfat": "dosfstools",
    "etcd": "etcd-server",
    "dpkg": "dpkg",
    "gpg": "gnupg",
    "grub-mkimage": "grub-common",
    "grub-mkrescue": "grub-common",
    "hivexregedit": "libwin-hivex-perl",
    "hivexsh": "libhivex-bin",
    "ip": "iproute2",
    "lb": "live-build",
    "mcopy": "mtools",
    "mdel": "mtools",
    "mdir": "mtools",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.ext4": "e2fsprogs",
    "mformat": "mtools",
    "minfo": "mtools",
    "mkfs.erofs": "erofs-utils",
    "mkfs.ntfs": "ntfs-3g",
    "mkfs.xfs": "xfsprogs",
    "mkfs.vfat": "dosfstools",
    "mksquashfs": "squashfs-tools",
    "mlabel": "mtools",
    "mmd": "mtools",
    "mtype": "mtools",
    "nginx": "nginx-light",
    "nsenter": "util-linux",
    "objcopy": "binutils",
    "ntfscp": "ntfs-3g",
    "promtool": "prometheus",
    "qemu-img": "qemu-utils",
    "qemu-io": "qemu-utils",
    "qemu-system-x86_64": "qemu-system-x86",
    "isoinfo": "genisoimage",
    "isovfy": "genisoimage",
    "sbsign": "sbsigntool",
    "setfattr": "attr",
    "sfdisk": "fdisk",
    "sgdisk": "gdisk",
    "softhsm2-util": "softhsm2",
    "systemd-analyze": "systemd",
    "tinyproxy": "tinyproxy-bin",
    "unshare": "util-linux",
    "xz": "xz-utils",
    "virt-fw-vars": "python3-virt-firmware, or virt-firmware of PyPI",
    "/usr/lib/ISOLINUX": "isolinux",
    "/usr/lib/grub/i386-pc": "grub-pc-bin",
    "/usr/lib/cni": "containernetworking-plugins",
    "/usr/lib/grub/x86_64-efi": "grub-efi-amd64-bin",
    "/usr/lib/ipxe/ipxe.lkrn": "ipxe",
    "/usr/lib/syslinux/modules/bios": "syslinux-common",
    "/usr/share/OVMF": "ovmf",
}


def needs_client(name: str) -> str:
    """Return a program's absolute path; if it is missing, skip the test, or fail it (``REQUIRE_CLIENTS=1``).

    Args:
        name: a program's name, or the absolute path of a directory that it installs.
    """
    found = _find(name)
    if found is None:
        missing(f"{name} ({_origin(name)})")
    if _starts_nothing(Path(found)):
        missing(f"{name} (pip's script does not start from a path with blanks)")
    return found


def run_client(name: str, *arguments: str | Path, timeout_seconds: float = _TIMEOUT_SECONDS) -> bytes:
    """Run a client and return its standard output; fail the test if it fails or exceeds `timeout_seconds`.

    Args:
        name: as for ``needs_client``.
        *arguments: of its command line.
        timeout_seconds: until it is killed.
    """
    command = [needs_client(name), *map(str, arguments)]
    with subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE) as process:
        try:
            output, errors = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
    told = (output[-_TOLD_BYTES:] + errors[-_TOLD_BYTES:]).decode(errors="replace")
    assert process.returncode == 0, f"{' '.join(command)}\nstatus {process.returncode}\n{told}"
    return output


def missing(what: str) -> NoReturn:
    """Skip the running test for a missing client, or fail it under ``REQUIRE_CLIENTS=1``."""
    if os.environ.get("REQUIRE_CLIENTS") == "1":
        pytest.fail(f"{MISSING}{what}", pytrace=False)
    pytest.skip(f"{MISSING}{what}")


def _find(name: str) -> str | None:
    if Path(name).is_absolute():
        return name if any(Path(name).glob("*")) or Path(name).is_file() else None
    return shutil.which(name, path=_SEARCH_PATH)


def _starts_nothing(program: Path) -> bool:
    """Return True for a script of pip whose first line names a path with blanks."""
    if " " not in sys.prefix or not program.is_file():
        return False
    with program.open("rb") as file:
        return file.readline().startswith(f"#!{sys.prefix}/".encode())


def _origin(name: str) -> str:
    return _COMPILED.get(name) or f"Debian package {_PACKAGES.get(name, name)}"
