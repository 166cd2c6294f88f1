from __future__ import annotations

from tests.catalog.conftest import lines, origin

__all__ = ["lines", "origin"]
