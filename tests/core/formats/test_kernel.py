from __future__ import annotations

import gzip
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.formats.kernel import HEAD_BYTES, detect_kernel_architecture

if TYPE_CHECKING:
    from collections.abc import Callable


def pe(machine: int, offset: int = 64) -> bytes:
    """Return a kernel with an EFI stub."""
    return (
        b"MZ".ljust(60, b"\0")
        + struct.pack("<I", offset).ljust(offset - 60, b"\0")
        + b"PE\0\0"
        + struct.pack("<H", machine)
    )


def elf(machine: int, order: int = 1, bits: int = 2) -> bytes:
    """Return an ELF executable."""
    packed = struct.pack("<H" if order == 1 else ">H", machine)
    return (b"\x7fELF" + bytes([bits, order, 1])).ljust(18, b"\0") + packed


@pytest.mark.parametrize(
    ("kernel", "architecture"),
    [
        (pe(0x8664), "x86_64"),
        (pe(0x8664, 250), "x86_64"),
        (pe(0xAA64), "aarch64"),
        (gzip.compress(pe(0xAA64) + bytes(100_000), mtime=0), "aarch64"),
        (pe(0x5064), None),
        (elf(21), "ppc64le"),
        (elf(21, order=2), None),
        (elf(20, bits=1), None),
        (elf(62), None),
        (bytes(65544) + b"S390EP", "s390x"),
        (bytes(65543) + b"S390EP", None),
        (bytes(65544), None),
        (b"kernel data\n", None),
        (b"", None),
        (b"MZ", None),
        (pe(0x8664)[:-1], None),
        (pe(0x8664)[:60] + b"\xff\xff\xff\xff", None),
        (b"\x1f\x8b nonsense", None),
        (gzip.compress(gzip.compress(pe(0xAA64), mtime=0), mtime=0), None),
    ],
)
def test_architecture_is_recognized_by_the_first_bytes(kernel: bytes, architecture: str | None) -> None:
    assert detect_kernel_architecture(kernel[:HEAD_BYTES]) == architecture


@given(
    st.binary(max_size=200),
    st.sampled_from(
        [bytes, gzip.compress, lambda data: b"MZ" + data, lambda data: b"\x7fELF\x02\x01" + data]
    ),
)
def test_any_bytes_have_a_known_architecture_or_none(data: bytes, disguise: Callable[[bytes], bytes]) -> None:
    assert detect_kernel_architecture(disguise(data)) in {None, "x86_64", "aarch64", "ppc64le"}
