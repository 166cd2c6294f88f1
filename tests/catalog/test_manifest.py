from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from image_service.catalog.storage.manifest import Entry, Identity, read_manifest, write_manifest

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.text(min_size=1).filter(lambda name: "/" not in name and name not in {".", ".."})
IDENTITIES = st.builds(Identity, st.integers(0, 2**63), st.integers(0, 2**63))
ENTRIES = st.builds(
    Entry,
    st.floats(0, 2**40),
    st.none() | st.text(),
    st.dictionaries(NAMES, st.none() | IDENTITIES, max_size=3),
)
SOUND = {"referred": 1, "refused": None, "files": {"a": {"size": 1, "mtime_ns": 2}, "b": None}}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, ENTRIES, max_size=3))
def test_what_is_written_is_read(tmp_path: Path, entries: dict[str, Entry]) -> None:
    write_manifest(tmp_path / "manifest", entries)
    assert read_manifest(tmp_path / "manifest") == entries


def test_is_read_as_it_is_documented(tmp_path: Path) -> None:
    path = tmp_path / "manifest"
    path.write_text(json.dumps({"version": 1, "images": {"x": SOUND}}))
    assert read_manifest(path) == {"x": Entry(1.0, None, {"a": Identity(1, 2), "b": None})}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"version": 2, "images": {"x": SOUND}},
        {"version": 1, "images": []},
        {"version": 1, "images": {"x": 1}},
        {"version": 1, "images": {"x": {**SOUND, "referred": "now"}}},
        {"version": 1, "images": {"x": {**SOUND, "files": ["a"]}}},
        {"version": 1, "images": {"x": {**SOUND, "files": {"a": 1}}}},
        {"version": 1, "images": {"x": {**SOUND, "files": {"../a": None}}}},
        {"version": 1, "images": {"x": {**SOUND, "files": {"..": None}}}},
        {"version": 1, "images": {"x": {**SOUND, "files": {"/etc/passwd": None}}}},
    ],
)
def test_what_cannot_be_understood_gives_no_licence(tmp_path: Path, document: object) -> None:
    path = tmp_path / "manifest"
    path.write_text(json.dumps(document))
    assert read_manifest(path) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
def test_neither_does_what_is_damaged_or_not_there(tmp_path: Path, content: bytes) -> None:
    assert read_manifest(tmp_path / "manifest") == {}
    (tmp_path / "manifest").write_bytes(content)
    assert read_manifest(tmp_path / "manifest") == {}
