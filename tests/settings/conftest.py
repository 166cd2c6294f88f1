"""A complete environment, for tests that change a variable of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = {
    "openshift_version": "4.19",
    "cpu_architecture": "x86_64",
    "version": "9.6.1-0",
    "url": "https://mirror.example/rhcos.iso",
}
SECRET = "top-secret"


@pytest.fixture
def complete(tmp_path: Path) -> dict[str, str]:
    """Set what must be set."""
    return {
        "ASSISTED_SERVICE_HOST": "assisted.example:8090",
        "OS_IMAGES": json.dumps([IMAGE]),
        "DATA_DIR": str(tmp_path),
    }
