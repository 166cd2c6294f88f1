from __future__ import annotations

from tests.server.catalog.conftest import lines, no_proxies, origin

__all__ = ["lines", "no_proxies", "origin"]
