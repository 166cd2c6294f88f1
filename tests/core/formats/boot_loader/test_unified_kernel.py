from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError, FormatUnread
from image_service.core.formats.boot_loader.loader_entry import (
    LoaderEntry,
    find_systemd_default,
    sort_for_systemd,
)
from image_service.core.formats.boot_loader.unified_kernel import is_unified_kernel_name, read_unified_kernel
from image_service.core.formats.efi_program import read_efi_program, read_efi_sections
from tests.acceptance.clients import run_client
from tests.acceptance.debian import unpacked_package
from tests.core.formats.efi_programs import build_unified_kernel
from tests.core.formats.reading import MeteredReader, reader

if TYPE_CHECKING:
    from pathlib import Path

OS_RELEASE = b"ID=mkosi\nIMAGE_ID=\"my image\"\nVERSION_ID=9\nIMAGE_VERSION=4.10\nPRETTY_NAME='My 4'\n"
SECTIONS = {
    ".osrel": OS_RELEASE,
    ".cmdline": b"root=LABEL=root  console=ttyS0\n\0",
    ".linux": b"MZ kernel",
    ".initrd": b"070701 initrd",
}
VALUES = {
    "title": ("My 4",),
    "version": ("4.10",),
    "sort-key": ("my image",),
    "linux": (".linux",),
    "options": ("root=LABEL=root console=ttyS0",),
    "initrd": (".initrd",),
}


def read(content: bytes, file: str = "a.efi") -> LoaderEntry:
    return read_unified_kernel(file, reader(content), len(content))


@pytest.mark.parametrize("padding", [0, 1, 512])
def test_entry_is_read_from_sections(padding: int) -> None:
    image = build_unified_kernel(SECTIONS, padding)
    assert read(image) == LoaderEntry("a.efi", VALUES)
    section = read_efi_sections(reader(image), len(image))[".initrd"]
    assert reader(image)(section.offset, section.length) == SECTIONS[".initrd"]


@pytest.mark.acceptance
def test_entry_is_read_from_what_objcopy_adds_to_the_stub_of_systemd(tmp_path: Path) -> None:
    image = tmp_path / "a.efi"
    stub = unpacked_package("systemd-boot-efi") / "usr/lib/systemd/boot/efi/linuxx64.efi.stub"
    image.write_bytes(stub.read_bytes())
    options = []
    for number, (name, content) in enumerate(SECTIONS.items(), start=1):
        (tmp_path / name).write_bytes(content)
        place = f"{name}={0x10000000 + number * 0x100000:#x}"
        options += [f"--add-section={name}={tmp_path / name}", f"--change-section-vma={place}"]
    run_client("objcopy", *options, image)
    content = image.read_bytes()
    assert read(content) == LoaderEntry("a.efi", VALUES)
    sections = read_efi_sections(reader(content), len(content))
    for name, expected in SECTIONS.items():
        assert reader(content)(sections[name].offset, sections[name].length) == expected
    assert read_efi_program(reader(content), len(content)).architecture == "x86_64"


def test_microcode_comes_before_the_initrd_and_nothing_need_be_there() -> None:
    sections = {".initrd": b"i", ".ucode": b"u", ".linux": b"k", ".osrel": b""}
    assert read(build_unified_kernel(sections)).values == {
        "linux": (".linux",),
        "initrd": (".ucode .initrd",),
    }


@pytest.mark.parametrize("missing", [".linux", ".osrel"])
def test_other_programs_are_refused(missing: str) -> None:
    sections = {name: content for name, content in SECTIONS.items() if name != missing}
    with pytest.raises(FormatError, match=f"not a unified kernel image: it has no section {missing}"):
        read(build_unified_kernel(sections))


def test_several_profiles_are_not_read() -> None:
    with pytest.raises(FormatUnread, match="several profiles"):
        read(build_unified_kernel({**SECTIONS, ".profile": b"ID=rescue\n"}))


@pytest.mark.parametrize("end", range(0, len(build_unified_kernel(SECTIONS)), 7))
def test_cut_image_is_refused(end: int) -> None:
    with pytest.raises(FormatError):
        read(build_unified_kernel(SECTIONS)[:end])


def test_arguments_beyond_a_limit_are_refused_unread() -> None:
    image = build_unified_kernel({**SECTIONS, ".cmdline": bytes(2**20)})
    with pytest.raises(FormatUnread, match=r"section \.cmdline has 1048576 bytes"):
        read_unified_kernel("a.efi", MeteredReader(image, 2**16), len(image))


@given(st.data())
def test_altered_images_are_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(build_unified_kernel(SECTIONS))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        read_unified_kernel("a.efi", MeteredReader(bytes(content), 2**20), len(content))
    with suppress(FormatError):
        for section in read_efi_sections(reader(bytes(content)), len(content)).values():
            assert 0 <= section.offset <= section.offset + section.length <= len(content)


def test_images_are_ordered_with_entries_of_type_1() -> None:
    def unified(file: str, version: str) -> LoaderEntry:
        release = f"ID=x\nVERSION_ID={version}\n".encode()
        return read(build_unified_kernel({**SECTIONS, ".osrel": release}), file)

    first, second, exhausted = unified("b.efi", "10"), unified("c+3.efi", "9"), unified("d+0-3.EFI", "11")
    entry = LoaderEntry("e.conf", {"linux": ("/e",), "sort-key": ("x",), "version": ("9.5",)})
    ordered = sort_for_systemd([second, exhausted, entry, first])
    assert ordered == [first, entry, second, exhausted]
    assert find_systemd_default(ordered, "c.efi") == second
    assert find_systemd_default(ordered, "d.EFI") == exhausted
    assert find_systemd_default(ordered, "c.conf") is None


def test_names_that_systemd_boot_reads() -> None:
    names = ("a.efi", "A.EFI", "auto-a.efi", "a.efi.bak")
    assert list(filter(is_unified_kernel_name, names)) == ["a.efi", "A.EFI"]
