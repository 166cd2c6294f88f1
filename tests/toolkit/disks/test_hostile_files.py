"""Hostile files: each is refused with its reason, and none costs much memory or time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import UnsafeImage
from image_service.toolkit.disks.opening import open_image
from tests.toolkit.corpus.images import Hostile, write_host_file
from tests.toolkit.hostile import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_hostile_file_is_refused_with_its_reason(hostile: Hostile, tmp_path: Path) -> None:
    path = hostile.build(tmp_path, write_host_file(tmp_path))
    with pytest.raises(UnsafeImage) as refusal, open_image(path, hostile.declared):
        pass
    assert re.search(hostile.reason, refusal.value.detail)
    assert str(path) in refusal.value.detail
