"""The programs and Python packages that the toolkit uses, and where they come from."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterable

_ADMINISTRATION = "/usr/sbin:/sbin"  # Debian's users do not have these in PATH


@attrs.frozen
class Dependency:
    """A program, or a Python module, and the packages that contain it.

    Args:
        name: of the program, or of the module.
        debian: package.
        fedora: package.
        is_module: True for a Python module, which comes from PyPI as `debian` and `fedora` say.
        files: of something that is no program: absolute paths, one of which is there.
    """

    name: str
    debian: str
    fedora: str
    is_module: bool = False
    files: tuple[str, ...] = ()

    def find(self) -> str | None:
        """Return its path, or None if it is missing."""
        if self.files:
            return next((path for path in self.files if Path(path).exists()), None)
        if self.is_module:
            spec = find_spec(self.name)
            return (spec.origin or self.name) if spec else None
        return shutil.which(self.name, path=f"{os.environ.get('PATH', os.defpath)}:{_ADMINISTRATION}")


def _pypi(module: str, package: str) -> Dependency:
    return Dependency(module, f"{package} of PyPI", f"{package} of PyPI", is_module=True)


BOTOCORE = _pypi("botocore", "botocore")
BWRAP = Dependency("bwrap", "bubblewrap", "bubblewrap")
CRYPTOGRAPHY = _pypi("cryptography", "cryptography")
DEBUGFS = Dependency("debugfs", "e2fsprogs", "e2fsprogs")
DEFUSEDXML = _pypi("defusedxml", "defusedxml")
E2FSCK = Dependency("e2fsck", "e2fsprogs", "e2fsprogs")
HIVEXSH = Dependency("hivexsh", "libhivex-bin", "hivex")
NTFSCAT = Dependency("ntfscat", "ntfs-3g", "ntfsprogs")
NTFSINFO = Dependency("ntfsinfo", "ntfs-3g", "ntfsprogs")
NTFSLS = Dependency("ntfsls", "ntfs-3g", "ntfsprogs")
OSLO_UTILS = _pypi("oslo_utils", "oslo.utils[image-inspection]")
OVMF_CODE = Dependency(
    "OVMF_CODE.fd",
    "ovmf",
    "edk2-ovmf",
    files=(
        "/usr/share/OVMF/OVMF_CODE_4M.fd",
        "/usr/share/OVMF/OVMF_CODE.fd",
        "/usr/share/edk2/ovmf/OVMF_CODE.fd",
    ),
)
PRLIMIT = Dependency("prlimit", "util-linux", "util-linux-core")
QEMU_IMG = Dependency("qemu-img", "qemu-utils", "qemu-img")
QEMU_IO = Dependency("qemu-io", "qemu-utils", "qemu-img")
QEMU_SYSTEM = Dependency("qemu-system-x86_64", "qemu-system-x86", "qemu-system-x86-core")
SETPRIV = Dependency("setpriv", "util-linux", "util-linux")
UNSHARE = Dependency("unshare", "util-linux", "util-linux-core")

ALWAYS = (OSLO_UTILS, PRLIMIT, SETPRIV)
"""What every verb that opens a disk image needs."""

_ISOLATION = (BWRAP, UNSHARE)  # of programs, in the strongest way that works

DEPENDENCIES_OF_VERBS = {
    "inspect": ALWAYS,
    "validate": ALWAYS,
    "convert": (*ALWAYS, QEMU_IMG),
    "customize": (*ALWAYS, DEBUGFS, E2FSCK),
    "fetch": (OSLO_UTILS, DEFUSEDXML),
    "publish": (OSLO_UTILS, BOTOCORE),
}
OPTIONAL_OF_VERBS = {
    "convert": _ISOLATION,
    "customize": (*_ISOLATION, QEMU_IMG, QEMU_IO),
    "validate": (*_ISOLATION, NTFSCAT, NTFSINFO, NTFSLS, HIVEXSH, QEMU_IMG, QEMU_SYSTEM, OVMF_CODE),
    "fetch": (CRYPTOGRAPHY,),
}
"""What some arguments of a verb need, or what makes it safer."""


def require(dependencies: Iterable[Dependency]) -> None:
    """Raise MissingDependency if some are missing; it names all of them."""
    missing = [dependency for dependency in dependencies if not dependency.find()]
    if missing:
        told = ", ".join(f"{item.name} (Debian: {item.debian}; Fedora: {item.fedora})" for item in missing)
        raise MissingDependency(f"not installed: {told}")
