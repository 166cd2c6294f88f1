"""The programs and Python packages that the toolkit uses, and where they come from."""

from __future__ import annotations

from image_service.common.programs.dependencies import BWRAP, PRLIMIT, SETPRIV, UNSHARE, Dependency


def _pypi(module: str, package: str) -> Dependency:
    return Dependency(module, f"{package} of PyPI", f"{package} of PyPI", is_module=True)


BOTOCORE = _pypi("botocore", "botocore")
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
QEMU_IMG = Dependency("qemu-img", "qemu-utils", "qemu-img")
QEMU_IO = Dependency("qemu-io", "qemu-utils", "qemu-img")
QEMU_SYSTEM = Dependency("qemu-system-x86_64", "qemu-system-x86", "qemu-system-x86-core")

ALWAYS = (OSLO_UTILS, DEFUSEDXML, PRLIMIT, SETPRIV)
"""What every verb that opens a disk image needs."""

_ISOLATION = (BWRAP, UNSHARE)  # of programs, in the strongest way that works

DEPENDENCIES_OF_VERBS = {
    "inspect": ALWAYS,
    "validate": ALWAYS,
    "convert": (*ALWAYS, QEMU_IMG),
    "customize": (*ALWAYS, DEBUGFS, E2FSCK),
    "fetch": (OSLO_UTILS, DEFUSEDXML),
    "publish": (OSLO_UTILS, DEFUSEDXML, BOTOCORE),
}
OPTIONAL_OF_VERBS = {
    "convert": _ISOLATION,
    "customize": (*_ISOLATION, QEMU_IMG, QEMU_IO),
    "validate": (*_ISOLATION, NTFSCAT, NTFSINFO, NTFSLS, HIVEXSH, QEMU_IMG, QEMU_SYSTEM, OVMF_CODE),
    "fetch": (CRYPTOGRAPHY,),
}
"""What some arguments of a verb need, or what makes it safer."""
