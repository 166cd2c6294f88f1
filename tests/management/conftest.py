from __future__ import annotations

from tests.standalone.conftest import api, standalone

__all__ = ["api", "standalone"]
