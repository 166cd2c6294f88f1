from __future__ import annotations

from tests.transport.conftest import application, image, serve, serve_both, server

__all__ = ["application", "image", "serve", "serve_both", "server"]
