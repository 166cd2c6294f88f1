"""Checks in a process of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from image_service.common.programs.own_process import passes_elsewhere
from image_service.core.families.coreos.ignition import check_ignition

LARGE = json.dumps({"ignition": {"version": "3.2.0"}, "noise": "x" * (3 << 20)}).encode()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (b'{"ignition": {"version": "3.2.0"}}', True),
        (LARGE, True),
        (LARGE[:-1], False),
        (b"", False),
        (b'{"ignition": {"version": "2.2.0"}}', False),
        (b"[" * 1_000_000, False),
    ],
)
def test_config_is_judged_as_here(config: bytes, expected: bool) -> None:  # noqa: FBT001 - a parameter
    assert passes_elsewhere(check_ignition, config) is expected


def test_no_process_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/absent/python")
    assert not passes_elsewhere(check_ignition, LARGE)


def test_nothing_is_left_open() -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    passes_elsewhere(check_ignition, LARGE)
    passes_elsewhere(check_ignition, b"")
    assert len(list(descriptors.iterdir())) == before
