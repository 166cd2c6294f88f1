"""Identifiers of requests: those of X-Request-ID, or new ones."""

from __future__ import annotations

import os
import re

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def new_request_id() -> str:
    """Return a new identifier: 32 random hexadecimal digits."""
    return os.urandom(16).hex()


def valid_request_id(value: str | None) -> str:
    """Return an X-Request-ID that is safe to echo and to log; else empty."""
    return value if value is not None and _REQUEST_ID.fullmatch(value) else ""
