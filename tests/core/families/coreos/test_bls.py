"""Entries of the Boot Loader Specification."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.families.coreos.bls import BlsEntry, find_default_entry, read_entry, replace_options

_ENTRY = b"title A b\nversion 1\noptions $first a=1  \nlinux /k\ninitrd /boot/i.img\naboot /x"


def test_entry_has_its_values() -> None:
    assert read_entry(_ENTRY) == BlsEntry("/k", "/boot/i.img", "$first a=1", "A b", "1")


def test_options_are_replaced_and_the_rest_stays() -> None:
    assert replace_options(_ENTRY, "b") == _ENTRY.replace(b"$first a=1  ", b"b")


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line and not line.startswith(b"options "))))
def test_lines_around_options_stay_byte_for_byte(lines: list[bytes]) -> None:
    middle = len(lines) // 2
    entry, expected = (
        b"\n".join([*lines[:middle], b"options " + options, *lines[middle:]])
        for options in (b"old x", b"new")
    )
    assert replace_options(entry, "new") == expected


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"linux /k\ninitrd /i\n", "has 0 lines of options"),
        (b"options a\noptions b\nlinux /k\ninitrd /i\n", "has 2 lines of options"),
        (b"options a\ninitrd /i\n", "no absolute path as linux"),
        (b"options a\nlinux k\n", "no absolute path as linux and initrd"),
    ],
)
def test_entry_that_cannot_boot_is_refused(content: bytes, fault: str) -> None:
    with pytest.raises(FormatError, match=fault):
        read_entry(content)


def test_last_entry_boots_by_default() -> None:
    assert find_default_entry(["ostree-2-a.conf", "ostree-1-a.conf", "z.txt"]) == "ostree-2-a.conf"


def test_no_entry_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"no entry of the boot loader \(\*.conf\)"):
        find_default_entry(["README"])
