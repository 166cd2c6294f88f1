"""The operation that attempts at once what a base image needs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import attrs
import pytest

from image_service.core.errors import Conflict, InvalidRequest
from image_service.server.admin.image_retries_api import ImageRetriesApi
from image_service.server.web_api.messages import ApiRequest
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from image_service.server.admin.state import ServingState
    from image_service.server.web_api.messages import ApiResponse

IMAGE = {"version": "9.6", "cpu_architecture": "x86_64", "type": "full-iso"}


@attrs.define
class FakeState:
    """A service in which an attempt is due, or not."""

    is_due: bool = True
    asked: list[tuple[str, ...]] = attrs.field(factory=list)

    async def retry_image(self, *image: str) -> bool:
        self.asked.append(image)
        return self.is_due


async def post(state: FakeState, document: object) -> ApiResponse:
    (operation,) = ImageRetriesApi(cast("ServingState", state)).operations
    body = json.dumps(document).encode()
    return await operation.handler(ApiRequest("POST", operation.path, body=body))


@ensure_deferred
async def test_attempt_is_begun() -> None:
    state = FakeState()
    assert (await post(state, IMAGE)).status == 204
    assert state.asked == [("9.6", "x86_64", "full-iso")]


@ensure_deferred
async def test_image_without_an_attempt_is_a_conflict() -> None:
    with pytest.raises(Conflict, match="no attempt is due"):
        await post(FakeState(is_due=False), IMAGE)


@pytest.mark.parametrize(
    "document", [{}, {**IMAGE, "type": "x"}, {**IMAGE, "version": 9}, {**IMAGE, "x": "y"}]
)
@ensure_deferred
async def test_other_content_is_refused(document: dict[str, object]) -> None:
    state = FakeState()
    with pytest.raises(InvalidRequest):
        await post(state, document)
    assert state.asked == []
