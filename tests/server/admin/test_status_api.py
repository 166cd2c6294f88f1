"""The API of the status: the level of the log, and the sums of replicas."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from image_service.core.errors import InvalidRequest
from image_service.server.admin.status_api import StatusApi
from image_service.server.web_api.messages import ApiRequest, ApiResponse
from tests.server.admin.test_verdict import GOOD
from tests.server.snapshots.outcomes import outcome


@attrs.define
class StatusState:
    """The state of a service that is good."""

    levels: list[str] = attrs.field(factory=list)

    async def describe_status(self) -> dict[str, Any]:
        return GOOD

    async def render_images(self) -> str:
        return '{"images": []}'

    async def set_log_level(self, level: str) -> None:
        self.levels.append(level)


async def refresh() -> None:
    """Collect nothing."""


ACTIVITY: Any = SimpleNamespace(refresh=refresh, progress=SimpleNamespace(count_machines=lambda: 0))


def replica(machines: int, state: str = "present") -> dict[str, Any]:
    return {
        "host": "a",
        "machines": machines,
        "connections": 1,
        "requests": 2,
        "age_seconds": 20,
        "state": state,
    }


def ask(state: StatusState, replicas: list[dict[str, Any]], method: str, body: object = None) -> ApiResponse:
    api = StatusApi(state, ACTIVITY, lambda: replicas)  # type: ignore[arg-type] # a double
    (operation,) = [each for each in api.operations if each.method == method]
    request = ApiRequest(method, operation.path, body=json.dumps(body).encode())
    return outcome(operation.handler(request))  # type: ignore[arg-type] # a coroutine


def test_totals_are_of_replicas_that_are_present() -> None:
    replicas = [replica(4), replica(3), replica(9, "away")]
    status = json.loads(ask(StatusState(), replicas, "GET").body)
    assert status["totals"] == {"replicas": 2, "machines": 7, "connections": 2, "requests": 4}
    assert status["replicas"] == replicas
    assert json.loads(ask(StatusState(), [], "GET").body)["totals"] is None


def test_log_level_is_set() -> None:
    state = StatusState()
    assert ask(state, [], "PUT", {"level": "debug"}).status == 204
    assert state.levels == ["debug"]


@pytest.mark.parametrize("body", [{}, {"level": "loud"}, {"level": 1}, {"level": "info", "a": 1}, []])
def test_other_log_levels_are_refused(body: object) -> None:
    state = StatusState()
    with pytest.raises(InvalidRequest):
        ask(state, [], "PUT", body)
    assert state.levels == []
