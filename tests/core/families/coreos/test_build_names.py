from __future__ import annotations

import pytest

from image_service.core.families.coreos.build_names import ARCHITECTURE, VERSION


@pytest.mark.parametrize(
    ("name", "is_version", "is_architecture"),
    [
        ("x86_64", True, True),
        ("s390x", True, True),
        ("4.20.0-rc.1", True, False),
        ("44.20260707.3.1", True, False),
        (".hidden", False, False),
        ("a/b", False, False),
        ("", False, False),
        ("a" * 100, True, False),
        ("a" * 101, False, False),
    ],
)
def test_version_and_architecture_patterns_match_only_allowed_names(
    name: str, *, is_version: bool, is_architecture: bool
) -> None:
    assert (VERSION.fullmatch(name) is not None) is is_version
    assert (ARCHITECTURE.fullmatch(name) is not None) is is_architecture
