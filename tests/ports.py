"""Reserved ports for servers that need a port number before they listen; the benchmark needs them too."""

from __future__ import annotations

from bench.ports import free_port, wait_for_port

__all__ = ["ANY_ADDRESS", "free_port", "wait_for_port"]

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - nothing listens on it
"""Connections to it reach this machine; unlike loopback, requests to it use the proxies that are set."""
