from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.families.coreos.minimal_iso import BincodeReader
from tests.core.families.coreos.miniso_builder import number


@given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.binary(max_size=300))))
@example([250, 251, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**64 - 1])
def test_fields_are_read_back(values: list[int | bytes]) -> None:
    written = [number(value) if isinstance(value, int) else number(len(value)) + value for value in values]
    fields = BincodeReader("x.dat", b"".join(written) + b"more")
    for value in values:
        assert (fields.read_number() if isinstance(value, int) else fields.read_bytes()) == value
    assert fields.read(4) == b"more"


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\xfa", 250),
        (b"\xfb\xfb\x00", 251),
        (b"\xfb\x34\x12", 0x1234),
        (b"\xfc\x78\x56\x34\x12", 0x12345678),
        (b"\xfd\x08\x07\x06\x05\x04\x03\x02\x01", 0x0102030405060708),
        (b"\xfc\x01\x00\x00\x00", 1),  # in more bytes than it needs, which coreos-installer reads too
    ],
)
def test_numbers_have_the_documented_bytes(data: bytes, value: int) -> None:
    assert BincodeReader("x.dat", data).read_number() == value


@pytest.mark.parametrize("data", [b"\xfe" + bytes(16), b"\xff" + bytes(32)])
def test_invalid_number_is_refused_with_name_and_offset(data: bytes) -> None:
    fields = BincodeReader("x.dat", b"\0" + data)
    fields.read_number()
    with pytest.raises(FormatError, match=r"x\.dat has an invalid number at its offset 1$"):
        fields.read_number()


@pytest.mark.parametrize("data", [b"", b"\xfb\x01", b"\xfd" + bytes(7), b"\x05four", b"\xfd" + b"\xff" * 8])
def test_truncated_field_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"x\.dat ends too soon"):
        BincodeReader("x.dat", data).read_bytes()
