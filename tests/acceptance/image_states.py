"""The states of base images that a service reports."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.acceptance.service import Service

PATIENCE_SECONDS = 60
_OUTCOMES = {"ready", "degraded", "failed", "refused"}


def images_of(service: Service) -> dict[str, dict[str, Any]]:
    """Return the states of base images (``GET /images``), by version."""
    answer = service.get("/images")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"
    return {image["version"]: image for image in json.loads(answer.body)["images"]}


def until(service: Service, version: str, state: str) -> dict[str, Any]:
    """Wait until a base image has a state."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (image := images_of(service)[version])["state"] != state:
        assert image["state"] not in _OUTCOMES, image
        assert time.monotonic() < deadline, image
        time.sleep(0.02)
    return image
