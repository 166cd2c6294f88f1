"""The orders of versions, beside the vectors of rpm's own tests and systemd-analyze."""

from __future__ import annotations

import itertools
import subprocess

import pytest

from image_service.core.formats.boot_loader.loader_entry import grub_file_key
from image_service.core.formats.boot_loader.version_order import rpm_version_key, uapi_version_key
from tests.acceptance.clients import needs_client

RPM_VECTORS = [
    ("1.0", "1.0", 0),
    ("1.0", "2.0", -1),
    ("2.0.1", "2.0", 1),
    ("2.0.1a", "2.0.1", 1),
    ("5.5p1", "5.5p2", -1),
    ("5.5p10", "5.5p1", 1),
    ("10xyz", "10.1xyz", -1),
    ("xyz10", "xyz10.1", -1),
    ("xyz.4", "8", -1),
    ("5.5p2", "5.6p1", -1),
    ("6.0.rc1", "6.0", 1),
    ("10b2", "10a1", 1),
    ("1.0aa", "1.0a", 1),
    ("10.0001", "10.1", 0),
    ("10.0001", "10.0039", -1),
    ("4.999.9", "5.0", -1),
    ("20101121", "20101122", -1),
    ("2_0", "2.0", 0),
    ("a+", "a_", 0),
    ("1.0~rc1", "1.0", -1),
    ("1.0~rc1~git123", "1.0~rc1", -1),
    ("1.0^", "1.0", 1),
    ("1.0^git1", "1.01", -1),
    ("1.0^20160101", "1.0.1", -1),
    ("1.0~rc1^git1", "1.0~rc1", 1),
    ("1.0^git1~pre", "1.0^git1", -1),
    ("5.14.0", "5.9.0", 1),
]
"""Two versions, and 1 if rpm takes the first for newer, -1 for older: of its rpmvercmp.at, and kernels."""


@pytest.mark.parametrize(("one", "other", "expected"), RPM_VECTORS)
def test_order_is_that_of_rpm(one: str, other: str, expected: int) -> None:
    keys = rpm_version_key(one), rpm_version_key(other)
    assert (keys[0] > keys[1]) - (keys[0] < keys[1]) == expected


def test_order_is_that_of_systemd_analyze() -> None:
    program = needs_client("systemd-analyze")
    versions = [
        "1.0",
        "1.0~rc1",
        "1.0^",
        "1.0^a",
        "1.0-2",
        "1.0.1",
        "1.0a",
        "1.00",
        "1-1.2",
        "10",
        "9",
        "a",
        "",
    ]
    for one, other in itertools.combinations([f"x{each}" for each in versions], 2):
        keys = uapi_version_key(one), uapi_version_key(other)
        sign = "<" if keys[0] < keys[1] else ">" if keys[0] > keys[1] else "=="
        told = subprocess.run(
            [program, "compare-versions", one, other], capture_output=True, text=True, check=False
        )
        assert told.stdout.split()[1] == sign, told.stdout


def test_number_of_any_length_is_compared() -> None:
    assert rpm_version_key("1" * 5000) > rpm_version_key("9" * 4999)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("0123abcd-5.14.0-70.el9.x86_64.conf", "0123abcd-5.14.0-427.el9.x86_64.conf"),
        ("0123abcd-5.9.16-200.fc33.conf", "0123abcd-5.14.0-1.fc33.conf"),
        ("ostree-9-rhcos.conf", "ostree-10-rhcos.conf"),
        ("0123abcd-0-rescue.conf", "0123abcd-6.1.0-1.conf"),
        ("fedora.conf", "fedora-1.conf"),
    ],
)
def test_grub_takes_the_newer_file_first(older: str, newer: str) -> None:
    assert grub_file_key(older) < grub_file_key(newer)
