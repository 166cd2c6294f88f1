"""Writes an OVA: an OVF descriptor, a manifest and a VMDK in a USTAR archive (DSP0243, as one file)."""

from __future__ import annotations

import hashlib
import os
import tarfile
from typing import TYPE_CHECKING

from image_service.core.errors import Unprocessable
from image_service.toolkit.conversion.ovf import render_ovf
from image_service.toolkit.conversion.qemu_img import run_qemu_img
from image_service.toolkit.disks.digest import sha256_of
from image_service.toolkit.disks.sparse_copy import copy_sparse

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.toolkit.conversion.ovf import Appliance
    from image_service.toolkit.conversion.target import Target
    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.workspace.workspace import Workspace

LARGEST_MEMBER_BYTES = 8**11 - 1  # USTAR has eleven octal digits
_BLOCK_BYTES = 512
_RECORD_BYTES = 10240  # of which an archive is a multiple


def write_ova(
    image: DiskImage, out: Path, target: Target, workspace: Workspace, appliance: Appliance
) -> None:
    """Write the disk of an image as OVA to an empty file; equal disks and appliances give equal bytes.

    The order of the members is that of the specification: the descriptor, the manifest, then the files in the
    order of the descriptor's References. Holes of the VMDK are holes of the archive.

    Raises:
        Unprocessable: the VMDK is too large for USTAR.
        ConversionFailed, TimedOut, NoRoom: as `Workspace.run`.
    """
    disk = workspace.directory / "disk.vmdk"
    disk.touch(0o600)
    run_qemu_img(image, disk, target, workspace)
    with disk.open("rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        if size > LARGEST_MEMBER_BYTES:
            raise Unprocessable(
                f"the VMDK has {size} bytes though it is compressed, but a file in an OVA has"
                f" {LARGEST_MEMBER_BYTES} at most: DSP0243 requires USTAR, whose sizes have eleven octal"
                " digits; convert to vmdk instead"
            )
        disk_name = f"{appliance.name}-disk1.vmdk"
        descriptor = render_ovf(appliance, disk_name, size, image.disk.virtual_size)
        digests = {
            f"{appliance.name}.ovf": hashlib.sha256(descriptor).hexdigest(),
            disk_name: sha256_of(source.fileno(), workspace.pace),
        }
        manifest = "".join(f"SHA256({name})= {digest}\n" for name, digest in digests.items())
        head = b"".join(
            [
                _member(f"{appliance.name}.ovf", descriptor),
                _member(f"{appliance.name}.mf", manifest.encode()),
                _header(disk_name, size),
            ]
        )
        with out.open("r+b", buffering=0) as archive:
            archive.write(head)
            copy_sparse(source.fileno(), archive.fileno(), workspace, "archive", len(head))
            end = len(head) + size + 2 * _BLOCK_BYTES  # two blocks of zeros end an archive
            archive.truncate(-(-end // _RECORD_BYTES) * _RECORD_BYTES)


def _member(name: str, text: bytes) -> bytes:
    return _header(name, len(text)) + text + bytes(-len(text) % _BLOCK_BYTES)


def _header(name: str, size: int) -> bytes:
    """Return the header of a member without owner and date."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.USTAR_FORMAT)
