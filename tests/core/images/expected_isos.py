"""Expected minimal ISOs, built from files: the oracle of composing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from image_service.core.families.coreos.family import RAMDISK_FILE
from image_service.core.formats.initrd import compress_archive
from image_service.core.formats.newc import Member, write_archive
from tests.core.families.coreos.miniso_builder import minimal_files
from tests.core.formats.filesystems.iso_builder import IGNITION_LENGTH, build_iso, live_files

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOTFS_URL = "https://example.com/rootfs.img"
URL_ARGUMENT = f"coreos.live.rootfs_url={ROOTFS_URL}"
DEFAULT = "ignition.firstboot ignition.platform.id=metal"
"""The kernel arguments of a minimal ISO that nobody has customized."""
RAMDISK_LENGTH = 2**20


def archive(config: bytes, capacity: int = IGNITION_LENGTH) -> bytes:
    """Return the archive of a config; nothing for an empty one, which would count as a config."""
    if not config:
        return b""
    return compress_archive(write_archive([Member("config.ign", config)]), capacity)


def expected_spliced_minimal(arguments: str, ignition: bytes) -> bytes:
    """Return the customized spliced minimal ISO of a full one.

    Args:
        arguments: what its areas hold.
        ignition: what its Ignition area begins with.
    """
    files = _minimal_files(arguments, ignition)
    length = len(live_files()["coreos/kargs.json"])
    told = json.loads(files["coreos/kargs.json"])
    files["coreos/kargs.json"] = json.dumps(_as_written_by_rust(told), indent=2).encode().ljust(length)
    return build_iso(files)


def template(*, ramdisk_length: int = RAMDISK_LENGTH) -> bytes:
    """Return a derived minimal ISO: pristine, with an area for a ramdisk."""
    return expected_derived_minimal(DEFAULT, b"", bytes(ramdisk_length))


def expected_derived_minimal(arguments: str, ignition: bytes, ramdisk: bytes) -> bytes:
    """Return the customized derived minimal ISO.

    Args:
        arguments: what its areas hold.
        ignition: what its Ignition area begins with.
        ramdisk: all that the ramdisk's file holds.
    """
    return build_iso({**_minimal_files(arguments, ignition), RAMDISK_FILE: ramdisk})


def _minimal_files(arguments: str, ignition: bytes) -> dict[str, bytes]:
    files = minimal_files(live_files())
    kargs = json.loads(files["coreos/kargs.json"])
    area = f"{arguments}\n".ljust(kargs["size"], "#").encode()
    for place in kargs["files"]:
        path, offset = place["path"], place["offset"]
        files[path] = files[path][:offset] + area + files[path][offset + len(area) :]
    files["coreos/kargs.json"] = json.dumps({**kargs, "default": DEFAULT}).encode()
    files["images/ignition.img"] = ignition.ljust(IGNITION_LENGTH, b"\0")
    return files


def _as_written_by_rust(kargs: Mapping[str, list[dict[str, object]]]) -> dict[str, object]:
    """Order fields like coreos-installer."""
    files = [{"path": place["path"], "offset": place["offset"]} for place in kargs["files"]]
    return {"default": kargs["default"], "files": files, "size": kargs["size"]}
