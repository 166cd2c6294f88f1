"""The descriptor in a VMDK of qemu-img: equal for equal disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.imaging.conversion.vmdk_descriptor import normalize_descriptor
from tests.acceptance.clients import run_client

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("content_id", [b"CID=0", b"CID=123abcd", b"CID=0123abcd"])
def test_content_id_of_any_length_is_replaced(tmp_path: Path, content_id: bytes) -> None:
    """qemu-img writes a random number without leading zeros."""
    path = tmp_path / "disk.vmdk"
    run_client("qemu-img", "create", "-q", "-f", "vmdk", "-o", "subformat=streamOptimized", path, "1M")
    image = path.read_bytes()
    start = image.index(b"\nCID=") + 1
    end = image.index(b"\n", start)
    rest = image[end:].replace(b"\0" * 16, b"\0" * (16 + end - start - len(content_id)), 1)
    path.write_bytes(image[:start] + content_id + rest)
    normalize_descriptor(path)
    assert b"\nCID=fffffffe\nparentCID=ffffffff\n" in path.read_bytes()
