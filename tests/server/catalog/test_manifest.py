from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.server.catalog.storage.manifest import (
    FileIdentity,
    ManifestEntry,
    read_manifest,
    write_manifest,
)

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.text(min_size=1).filter(lambda name: "/" not in name and name not in {".", ".."})
IDENTITIES = st.builds(FileIdentity, st.integers(0, 2**63), st.integers(0, 2**63))
ENTRIES = st.builds(
    ManifestEntry,
    st.floats(0, 2**40),
    st.none() | st.text(),
    st.dictionaries(NAMES, st.none() | IDENTITIES, max_size=3),
)
VALID = {"referred": 1, "refused": None, "files": {"a": {"size": 1, "mtime_ns": 2}, "b": None}}


@given(st.dictionaries(NAMES, ENTRIES, max_size=3))
def test_round_trip(tmp_path: Path, entries: dict[str, ManifestEntry]) -> None:
    write_manifest(tmp_path / "manifest", entries)
    assert read_manifest(tmp_path / "manifest") == entries


def test_manifest_version_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "manifest"
    path.write_text(json.dumps({"version": 1, "images": {"x": VALID}}))
    assert read_manifest(path) == {"x": ManifestEntry(1.0, None, {"a": FileIdentity(1, 2), "b": None})}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"version": 2, "images": {"x": VALID}},
        {"version": 1, "images": []},
        {"version": 1, "images": {"x": 1}},
        {"version": 1, "images": {"x": {**VALID, "referred": "now"}}},
        {"version": 1, "images": {"x": {**VALID, "files": ["a"]}}},
        {"version": 1, "images": {"x": {**VALID, "files": {"a": 1}}}},
        {"version": 1, "images": {"x": {**VALID, "files": {"../a": None}}}},
        {"version": 1, "images": {"x": {**VALID, "files": {"..": None}}}},
        {"version": 1, "images": {"x": {**VALID, "files": {"/etc/passwd": None}}}},
    ],
)
def test_malformed_manifest_lists_nothing(tmp_path: Path, document: object) -> None:
    path = tmp_path / "manifest"
    path.write_text(json.dumps(document))
    assert read_manifest(path) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
def test_absent_or_damaged_manifest_lists_nothing(tmp_path: Path, content: bytes) -> None:
    assert read_manifest(tmp_path / "manifest") == {}
    (tmp_path / "manifest").write_bytes(content)
    assert read_manifest(tmp_path / "manifest") == {}
