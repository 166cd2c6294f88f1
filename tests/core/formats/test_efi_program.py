from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.efi_program import EfiProgram, read_efi_program
from tests.acceptance.debian import unpacked_package
from tests.core.formats.efi_programs import build_efi_program
from tests.core.formats.reading import MeteredReader, reader


def read(content: bytes) -> EfiProgram:
    return read_efi_program(reader(content), len(content))


def test_machine_signature_and_components_are_read() -> None:
    assert read(build_efi_program()) == EfiProgram("x86_64", is_signed=False, components=())
    shim = build_efi_program(machine=0xAA64, sbat=b"sbat,1,SBAT\nshim,4,UEFI shim\n", signature=b"signature")
    assert read(shim) == EfiProgram("aarch64", is_signed=True, components=("sbat", "shim"))
    assert read(build_efi_program(machine=0x5064)).architecture is None


def test_signature_outside_the_file_does_not_count() -> None:
    signed = build_efi_program(signature=b"signature")
    assert not read(signed[:-1]).is_signed


@pytest.mark.acceptance
def test_debian_shim_is_recognized() -> None:
    package = unpacked_package("shim-signed")
    shim = read((package / "usr/lib/shim/shimx64.efi.signed").read_bytes())
    assert (shim.architecture, shim.is_signed) == ("x86_64", True)
    assert "shim" in shim.components


@pytest.mark.parametrize("content", [b"", b"MZ", b"\x7fELF".ljust(64, b"\0"), build_efi_program()[:200]])
def test_other_files_are_refused(content: bytes) -> None:
    with pytest.raises(FormatError):
        read(content)


@given(st.data())
def test_damaged_programs_are_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(build_efi_program(sbat=b"shim,4\n", signature=b"signature"))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        read_efi_program(MeteredReader(bytes(content), 2**20), len(content))
