"""A mount that was begun with an earlier release goes on after an update, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.stored_mount import (
    EPOCH_SECONDS,
    MOUNT_WINDOW_SECONDS,
    OTHER_READER,
    READER,
    read_image,
    run_with_clock,
    unpack_archive,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance


def test_mount_of_superseded_version_continues_after_update(tmp_path: Path) -> None:
    path, mounted, newest = unpack_archive(tmp_path)
    with run_with_clock(tmp_path, EPOCH_SECONDS + MOUNT_WINDOW_SECONDS / 2) as service:
        assert read_image(service, path, READER) == mounted
        assert read_image(service, path, OTHER_READER) == newest


def test_mount_has_ended_when_its_window_has_passed(tmp_path: Path) -> None:
    path, mounted, newest = unpack_archive(tmp_path)
    with run_with_clock(tmp_path, EPOCH_SECONDS + 30 * 24 * 3600) as service:
        image = read_image(service, path, READER)  # of a new snapshot, whose newer layout changes the ETag
    assert image.sha256 == newest.sha256 != mounted.sha256
