"""Reserved ports for servers that need a port number before they listen; the benchmark needs them too."""

from __future__ import annotations

from bench.ports import free_port

__all__ = ["free_port"]
