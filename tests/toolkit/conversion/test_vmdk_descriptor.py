"""The descriptor in a VMDK of qemu-img: equal for equal disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.toolkit.conversion.vmdk_descriptor import normalize_descriptor
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
    shorter = end - start - len(content_id)
    rest = image[end:].replace(b"\0" * 16, b"\0" * (16 + shorter), 1)
    if shorter > 0:  # qemu-img leaves the end of the longer text, behind a zero
        rest = rest.replace(b"\n\0\0", b"\n\0\n", 1)
    path.write_bytes(image[:start] + content_id + rest)
    normalize_descriptor(path)
    normal = path.read_bytes()
    assert b"\nCID=fffffffe\nparentCID=ffffffff\n" in normal
    assert b"\n\0\n" not in normal
