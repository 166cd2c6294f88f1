from __future__ import annotations

from tests.server.transport.conftest import handler, image, serve, serve_both, server

__all__ = ["handler", "image", "serve", "serve_both", "server"]
