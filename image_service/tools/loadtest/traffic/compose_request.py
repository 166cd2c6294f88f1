"""The requests of the profile ``composer``."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

_IGNITION = b'{"ignition": {"version": "3.2.0"}}'
DEFAULT_REQUEST: bytes = json.dumps(
    {
        "distribution": "rhcos-4.17",
        "image_requests": [
            {
                "architecture": "x86_64",
                "image_type": "network-installer",
                "repositories": [],
                "upload_targets": [{"type": "local", "upload_options": {}}],
            }
        ],
        "customizations": {"ignition": {"embedded": {"config": b64encode(_IGNITION).decode()}}},
    }
).encode()
"""A minimal ISO of the sample, which needs no worker."""


def read_compose_request(name: str) -> bytes:
    """Return the content of a file; raises ValueError if it is no JSON object."""
    content = Path(name).read_bytes()
    try:
        document: object = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError("must be a file of a JSON object, the content of POST /compose")  # noqa: TRY004 - a file's content
    return content
