from __future__ import annotations

import struct

import pytest

from image_service.core.families.coreos.live_iso import detect_architecture
from image_service.core.families.iso_layout import BootFiles
from image_service.core.formats.reading import Span
from tests.core.formats.reading import reader

AARCH64 = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64) + b"PE\0\0" + struct.pack("<H", 0xAA64)


@pytest.mark.parametrize(
    ("kernel", "architecture"),
    [(AARCH64, "aarch64"), (bytes(65544) + b"S390EP", "s390x"), (bytes(65544), None), (b"MZ", None)],
)
def test_architecture_is_read_from_the_kernel_alone(kernel: bytes, architecture: str | None) -> None:
    image = b"before" + kernel + b"S390EP behind"
    files = BootFiles(kernel=Span("vmlinuz", 6, len(kernel)))
    assert detect_architecture(reader(image), files) == architecture


def test_ins_file_is_s390x() -> None:
    assert detect_architecture(reader(b""), BootFiles(ins_file=Span("generic.ins", 0, 1))) == "s390x"


def test_architecture_without_kernel_is_unknown() -> None:
    assert detect_architecture(reader(b""), BootFiles()) is None
