"""Other parts of a live ISO: the ramdisk area, and the files that are booted without it."""

from __future__ import annotations

import json

import pytest

from image_service.core.errors import FormatError
from image_service.core.families.coreos.family import RAMDISK_FILE
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.formats.reading import read_layout

KARGS_JSON = "coreos/kargs.json"


def files_without(*paths: str) -> dict[str, bytes]:
    return {path: content for path, content in live_files().items() if path not in paths}


# Ramdisk


def test_ramdisk_area_is_a_file_of_its_own() -> None:
    iso = build_live_iso({**live_files(), RAMDISK_FILE: bytes(4096)})
    area = read_layout(iso).ramdisk
    assert area is not None
    assert area.length == 4096
    marked = bytearray(iso)
    marked[area.offset : area.offset + 4096] = b"r" * 4096
    assert bytes(marked) == build_live_iso({**live_files(), RAMDISK_FILE: b"r" * 4096})


def test_iso_that_is_not_derived_has_no_ramdisk_area() -> None:
    assert read_layout(build_live_iso()).ramdisk is None


def test_ramdisk_area_that_overlaps_the_config_is_refused() -> None:
    igninfo = json.dumps({"file": RAMDISK_FILE}).encode()
    iso = build_live_iso({**live_files(), RAMDISK_FILE: bytes(4096), "coreos/igninfo.json": igninfo})
    with pytest.raises(FormatError, match=f"areas overlap: 4096 bytes .*{RAMDISK_FILE}"):
        read_layout(iso)


# Files


@pytest.mark.parametrize("path", ["images/pxeboot/vmlinuz", "images/pxeboot/kernel.img", "images/kernel.img"])
def test_kernel_is_found_by_each_of_its_names(path: str) -> None:
    iso = build_live_iso({**files_without("images/pxeboot/vmlinuz"), path: b"a kernel"})
    kernel = read_layout(iso).files.kernel
    assert kernel is not None
    assert iso[kernel.offset : kernel.offset + kernel.length] == b"a kernel"


@pytest.mark.parametrize("path", ["images/pxeboot/initrd.img", "images/initrd.img"])
def test_initrd_is_found_by_each_of_its_names(path: str) -> None:
    iso = build_live_iso({**files_without("images/pxeboot/initrd.img"), path: b"an initrd"})
    initrd = read_layout(iso).files.initrd
    assert initrd is not None
    assert iso[initrd.offset : initrd.offset + initrd.length] == b"an initrd"


def test_newer_of_two_names_wins() -> None:
    old = {"images/pxeboot/kernel.img": b"old", "images/kernel.img": b"old", "images/initrd.img": b"old"}
    files = read_layout(build_live_iso({**live_files(), **old})).files
    assert files.kernel is not None
    assert files.initrd is not None
    assert (files.kernel.length, files.initrd.length) == (len(b"kernel data\n"), len(b"initrd data\n"))


# Kernel arguments


def test_kargs_json_is_kept_unchanged() -> None:
    iso = build_live_iso()
    kargs_json = read_layout(iso).kargs_json
    assert kargs_json is not None
    assert kargs_json.content == live_files()[KARGS_JSON]
    assert iso[kargs_json.offset :].startswith(kargs_json.content)
    without = read_layout(build_live_iso(files_without(KARGS_JSON)))
    assert (without.kargs_json, without.kernel_arguments) == (None, None)


def test_length_of_default_arguments_counts_bytes() -> None:
    kargs = json.loads(live_files()[KARGS_JSON])
    kargs["default"] = "ä" * (kargs["size"] // 2 + 1)
    iso = build_live_iso({**live_files(), KARGS_JSON: json.dumps(kargs).encode()})
    with pytest.raises(FormatError, match=f"take {len(kargs['default']) * 2} bytes, the areas have"):
        read_layout(iso)
