"""The doctor on the administrative listener: for URLs of this service alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from image_service.app.admin.examinations_api import ExaminationsApi
from image_service.core.errors import InvalidParameter
from image_service.server.web_api.messages import ApiRequest
from tests.server.snapshots.outcomes import outcome

BASE_URL = "http://images.example.com:8080"


class StatusDouble:
    """The state of a service whose URLs begin with `BASE_URL`."""

    async def describe_status(self) -> dict[str, str]:
        return {"base_url": BASE_URL}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": 1},
        {"url": f"{BASE_URL}/a", "deep": True},
        {"url": "http://192.0.2.1/full.iso"},
        {"url": f"{BASE_URL}0/full.iso"},
        {"url": f"{BASE_URL}@192.0.2.1/full.iso"},
        {"url": f"{BASE_URL}/full iso"},
    ],
)
def test_other_urls_are_refused(body: object) -> None:
    state: Any = StatusDouble()
    reactor: Any = None  # no thread is started
    (operation,) = ExaminationsApi(state, reactor).operations
    request = ApiRequest("POST", operation.path, body=json.dumps(body).encode())
    with pytest.raises(InvalidParameter, match="URL"):
        outcome(operation.handler(request))  # type: ignore[arg-type] # a coroutine
