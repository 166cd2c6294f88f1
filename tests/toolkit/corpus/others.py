"""Hostile files that are of no format which the toolkit reads, and OVAs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

from tests.acceptance.clients import run_client
from tests.toolkit.corpus.images import DISK_BYTES, MIB, Hostile, disk_content, file_of, image
from tests.toolkit.corpus.vmdk import flat_vmdk

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.toolkit.corpus.images import Build

_NAMESPACE = "http://schemas.dmtf.org/ovf/envelope/1"


def luks_volume() -> bytes:
    """Return the header of an encrypted volume, version 1, and a MiB."""
    names = (b"aes", b"xts-plain64", b"sha256")
    return b"LUKS\xba\xbe\0\1" + b"".join(name.ljust(32, b"\0") for name in names) + bytes(MIB)


def _created(disk_format: str) -> Build:
    def build(directory: Path, _host: Path) -> Path:
        path = directory / f"hostile.{disk_format}"
        run_client("qemu-img", "create", "-f", disk_format, path, "4M")
        return path

    return build


def _sparse(size: int, head: bytes = b"") -> Build:
    def build(directory: Path, _host: Path) -> Path:
        path = directory / "sparse.img"
        path.write_bytes(head)
        os.truncate(path, size)
        return path

    return build


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("disk.raw", disk_content())
    return file.getvalue()


def _fifo(directory: Path, _host: Path) -> Path:
    path = directory / "fifo"
    os.mkfifo(path)
    return path


def _directory(directory: Path, _host: Path) -> Path:
    path = directory / "directory"
    path.mkdir()
    return path


def _device(directory: Path, _host: Path) -> Path:
    path = directory / "zero"
    path.symlink_to("/dev/zero")
    return path


def tar(*members: tuple[str, bytes]) -> bytes:
    """Return an archive of files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def ovf(name: str) -> bytes:
    """Return an OVF descriptor of one disk, which is in the file of that name."""
    return (
        f'<?xml version="1.0"?><Envelope xmlns="{_NAMESPACE}" xmlns:ovf="{_NAMESPACE}"><References>'
        f'<File ovf:id="file1" ovf:href="{name}"/></References><DiskSection><Info>disks</Info>'
        f'<Disk ovf:capacity="{DISK_BYTES}" ovf:diskId="disk1" ovf:fileRef="file1"/></DiskSection></Envelope>'
    ).encode()


def stream_vmdk() -> bytes:
    """Return the kind of VMDK that is in OVAs."""
    return image("vmdk", "subformat=streamOptimized")


def _ova_of(name: str, make_disk: Callable[[], bytes]) -> Build:
    return file_of(lambda: tar(("vm.ovf", ovf(name)), (name, make_disk())), "hostile.ova")


def _ova_with(descriptor: bytes) -> Build:
    """Return an OVA of a right disk, and of this descriptor."""
    return file_of(lambda: tar(("vm.ovf", descriptor), ("disk.vmdk", stream_vmdk())), "hostile.ova")


def _with_entities() -> bytes:
    declaration = b'<!DOCTYPE x [<!ENTITY name SYSTEM "file:///etc/hostname">]>'
    return ovf("disk.vmdk").replace(b"?>", b"?>" + declaration, 1).replace(b"disks<", b"&name;<")


def _ova_of_flat_vmdk(directory: Path, host: Path) -> Path:
    path = directory / "hostile.ova"
    path.write_bytes(
        tar(("vm.ovf", ovf("disk.vmdk")), ("disk.vmdk", flat_vmdk(directory, host).read_bytes()))
    )
    return path


def _ova_of_link(kind: bytes) -> Build:
    def build(directory: Path, host: Path) -> Path:
        path = directory / "hostile.ova"
        link = tarfile.TarInfo("disk.vmdk")
        link.type, link.linkname = kind, str(host)
        first = tar(("vm.ovf", ovf("disk.vmdk")))
        path.write_bytes(
            first.rstrip(b"\0").ljust(1024, b"\0") + link.tobuf(tarfile.USTAR_FORMAT) + bytes(1024)
        )
        return path

    return build


def _compressed_ova() -> bytes:
    return gzip.compress(tar(("vm.ovf", ovf("disk.vmdk")), ("disk.vmdk", stream_vmdk())))


HOSTILE = (
    Hostile("empty", "empty", file_of(lambda: b"")),
    Hostile("fifo", "FIFO", _fifo),
    Hostile("directory", "directory", _directory),
    Hostile("character-device", "character device", _device),
    Hostile("luks", "LUKS", file_of(luks_volume)),
    Hostile("luks-declared-raw", "declared .* raw.* luks", file_of(luks_volume), "raw"),
    Hostile("vdi", "VDI", _created("vdi")),
    Hostile("qed", "QED", _created("qed")),
    Hostile("parallels", "Parallels", _created("parallels")),
    Hostile("bochs", "Bochs", file_of(lambda: b"Bochs Virtual HD Image".ljust(MIB, b"\0"))),
    Hostile("cloop", "cloop", file_of(lambda: b"#!/bin/sh\n#V2.0 Format\n".ljust(MIB, b"\0"))),
    Hostile("dmg", "DMG", file_of(lambda: bytes(MIB) + b"koly".ljust(512, b"\0"))),
    Hostile("gzip", "gzip.*decompress", file_of(lambda: gzip.compress(disk_content()))),
    Hostile("gzip-of-qcow2", "gzip.*decompress", file_of(lambda: gzip.compress(image("qcow2")))),
    Hostile("xz", "xz.*decompress", file_of(lambda: lzma.compress(disk_content(), preset=0))),
    Hostile("bzip2", "bzip2.*decompress", file_of(lambda: bz2.compress(disk_content()))),
    Hostile("zstd", "zstd.*decompress", file_of(lambda: zstd.compress(disk_content()))),
    Hostile("zip", "zip.*unpack", file_of(_zip)),
    Hostile("qcow2-declared-vmdk", "declared .* vmdk.* qcow2", file_of(lambda: image("qcow2")), "vmdk"),
    Hostile("raw-declared-qcow2", "declared .* qcow2.* raw", file_of(disk_content), "qcow2"),
    Hostile("raw-declared-ova", "declared .* ova.* raw", file_of(disk_content), "ova"),
    Hostile("sparse-vhdx-of-8-tib", "VHDX|vhdx|region|header|blocks|ends", _sparse(1 << 43, b"vhdxfile")),
    Hostile("sparse-qcow2-of-8-tib", "qcow2|clusters", _sparse(1 << 43, b"QFI\xfb")),
    Hostile("sparse-vmdk-of-8-tib", "VMDK|vmdk|version|escriptor", _sparse(1 << 43, b"KDMV")),
    Hostile("sparse-vhd-of-8-tib", "VHD|vhd|footer", _sparse(1 << 43, b"conectix")),
    Hostile("tar-without-ovf", "OVF|ovf", file_of(lambda: tar(("disk.vmdk", stream_vmdk())))),
    Hostile("ova-member-above", "name|path|\\.\\.", _ova_of("../disk.vmdk", stream_vmdk)),
    Hostile("ova-member-absolute", "name|path", _ova_of("/etc/disk.vmdk", stream_vmdk)),
    Hostile("ova-of-flat-vmdk", "subformat|monolithicFlat|KDMV|descriptor", _ova_of_flat_vmdk),
    Hostile("ova-of-qcow2", "qcow2", _ova_of("disk.vmdk", lambda: image("qcow2"))),
    Hostile("ova-of-raw", "raw", _ova_of("disk.vmdk", disk_content)),
    Hostile("ova-of-symlink", "link|type|regular", _ova_of_link(tarfile.SYMTYPE)),
    Hostile("ova-of-hard-link", "link|type|regular", _ova_of_link(tarfile.LNKTYPE)),
    Hostile(
        "ova-of-two-disks",
        "disks|two|2",
        file_of(lambda: tar(("vm.ovf", ovf("a.vmdk")), ("a.vmdk", stream_vmdk()), ("b.vmdk", stream_vmdk()))),
    ),
    Hostile(
        "ova-cut",
        "ends|outside|leaves|cut",
        file_of(lambda: tar(("vm.ovf", ovf("disk.vmdk")), ("disk.vmdk", stream_vmdk()))[:20000]),
    ),
    *(
        Hostile(f"ova-referring-to-{kind}", "vm.ovf .*(path or a URL)", _ova_with(ovf(reference)))
        for kind, reference in {
            "above": "../disk.vmdk",
            "absolute": "/etc/passwd",
            "escaped": "..%2Fdisk.vmdk",
            "url": "http://192.0.2.1/disk.vmdk",
            "file-url": "file:///etc/passwd",
            "nothing": "",
        }.items()
    ),
    Hostile(
        "ova-with-entities", "vm.ovf .*document type declaration or entities", _ova_with(_with_entities())
    ),
    Hostile("ova-without-xml", "vm.ovf .*XML", _ova_with(b"OVF\n")),
    Hostile("ova-compressed", "gzip.*decompress", file_of(_compressed_ova)),
)
