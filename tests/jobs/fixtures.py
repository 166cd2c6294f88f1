"""Upstream's OpenAPI documents, where they are present."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_OPENAPI = Path(__file__).resolve().parents[3] / "shared" / "fixtures" / "openapi"


def upstream_document(name: str) -> Any:
    """Return a document of upstream; None: it is not present."""
    path = _OPENAPI / name
    return yaml.safe_load(path.read_text()) if path.is_file() else None
