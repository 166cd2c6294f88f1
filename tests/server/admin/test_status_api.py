"""The API of the status: the level of the log, and the sums of replicas."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred

from image_service.core.errors import InvalidRequest
from image_service.server.admin.status_api import StatusApi
from image_service.server.web_api.messages import ApiRequest, ApiResponse
from tests.server.admin.test_verdict import GOOD
from tests.server.snapshots.outcomes import outcome

if TYPE_CHECKING:
    from collections.abc import Coroutine


@attrs.define
class StatusState:
    """The state of a service that is good."""

    levels: list[str] = attrs.field(factory=list)
    addresses: list[str | None] = attrs.field(factory=list)

    async def describe_status(self) -> dict[str, Any]:
        return GOOD

    async def render_images(self) -> str:
        return '{"images": []}'

    async def set_log_level(self, level: str) -> None:
        self.levels.append(level)

    def describe_base_address(self) -> dict[str, Any]:
        return {"decided_by": None, "chosen": None, "is_present": True, "addresses": []}

    async def choose_address(self, address: str | None) -> None:
        self.addresses.append(address)


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


def begin(
    state: StatusState, replicas: list[dict[str, Any]], operation_id: str, body: object = None
) -> Coroutine[Any, Any, ApiResponse]:
    api = StatusApi(state, ACTIVITY, lambda: replicas)  # type: ignore[arg-type] # a double
    (operation,) = [each for each in api.operations if each.id == operation_id]
    request = ApiRequest(operation.method, operation.path, body=json.dumps(body).encode())
    return operation.handler(request)  # type: ignore[return-value] # a coroutine


def ask(
    state: StatusState, replicas: list[dict[str, Any]], operation_id: str, body: object = None
) -> ApiResponse:
    return outcome(begin(state, replicas, operation_id, body))


def test_totals_are_of_replicas_that_are_present() -> None:
    replicas = [replica(4), replica(3), replica(9, "away")]
    status = json.loads(ask(StatusState(), replicas, "getStatus").body)
    assert status["totals"] == {"replicas": 2, "machines": 7, "connections": 2, "requests": 4}
    assert status["replicas"] == replicas
    assert json.loads(ask(StatusState(), [], "getStatus").body)["totals"] is None


def test_log_level_is_set() -> None:
    state = StatusState()
    assert ask(state, [], "setLogLevel", {"level": "debug"}).status == 204
    assert state.levels == ["debug"]


@pytest.mark.parametrize("body", [{}, {"level": "loud"}, {"level": 1}, {"level": "info", "a": 1}, []])
def test_other_log_levels_are_refused(body: object) -> None:
    state = StatusState()
    with pytest.raises(InvalidRequest):
        ask(state, [], "setLogLevel", body)
    assert state.levels == []


@pytest.mark.parametrize("address", ["192.0.2.1", None])
def test_address_of_urls_is_chosen(address: str | None) -> None:
    state = StatusState()
    assert ask(state, [], "chooseAddress", {"address": address}).status == 204
    assert state.addresses == [address]


def test_address_is_chosen_for_all_processes_although_the_client_leaves() -> None:
    stored: Deferred[None] = Deferred()

    class SlowState(StatusState):
        async def choose_address(self, address: str | None) -> None:
            await stored
            await super().choose_address(address)

    state = SlowState()
    responding = Deferred.fromCoroutine(begin(state, [], "chooseAddress", {"address": "192.0.2.1"}))
    responding.cancel()
    responding.addErrback(lambda failure: failure.trap(CancelledError))
    assert state.addresses == []
    stored.callback(None)
    assert state.addresses == ["192.0.2.1"]


@pytest.mark.parametrize("body", [{}, {"address": 1}, {"address": None, "a": 1}, []])
def test_other_bodies_choose_no_address(body: object) -> None:
    state = StatusState()
    with pytest.raises(InvalidRequest):
        ask(state, [], "chooseAddress", body)
    assert state.addresses == []
