"""Requests that the supervisor forwards to a worker, through doubles of the channel."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from image_service.core.errors import NotFound, Unavailable
from image_service.server.processes.forwarding import QUERY, ForwardedRequests, respond_to_forwarded
from image_service.server.web_api.messages import ApiRequest, ApiResponse, json_response
from tests.server.snapshots.outcomes import Outcome, outcome

REQUEST = ApiRequest("POST", "/api/v1/links", body=b'{"label": "\xc3\xa4"}\x00\xff', client="192.0.2.1")


@attrs.define
class WorkerDouble:
    """A slot whose worker responds at once, through JSON as the channel does."""

    response: ApiResponse | NotFound
    is_serving: bool = True
    received: list[ApiRequest] = attrs.field(factory=list)

    async def respond(self, request: ApiRequest) -> ApiResponse:
        self.received.append(request)
        if isinstance(self.response, NotFound):
            raise self.response
        return self.response

    async def query(self, name: str, *arguments: Any, timeout_seconds: float) -> Any:
        assert name == QUERY
        assert timeout_seconds > 3
        sent = json.loads(json.dumps(arguments))
        return json.loads(json.dumps(await respond_to_forwarded(self.respond, *sent)))


def forward(*workers: WorkerDouble) -> Outcome[ApiResponse]:
    requests = ForwardedRequests(workers)  # type: ignore[arg-type] # doubles
    return Outcome(requests.make(REQUEST))


@pytest.mark.parametrize(
    "response",
    [json_response({"a": "ä"}, 201, (("Location", "/x"),)), ApiResponse(204), ApiResponse(200, b"\xff\x00")],
)
def test_request_and_response_arrive_as_they_were_sent(response: ApiResponse) -> None:
    away, worker = WorkerDouble(response, is_serving=False), WorkerDouble(response)
    assert forward(away, worker).value == response
    assert (away.received, worker.received) == ([], [REQUEST])


def test_error_of_a_worker_is_its_response() -> None:
    worker = WorkerDouble(NotFound("there is no such link"))
    response = forward(worker).value
    assert (response.status, response.content_type) == (404, "application/problem+json")
    assert json.loads(response.body)["detail"] == "there is no such link"


def test_without_a_worker_the_api_is_unavailable() -> None:
    assert isinstance(forward(WorkerDouble(ApiResponse(), is_serving=False)).error, Unavailable)


def test_path_parameters_are_in_the_path() -> None:
    worker = WorkerDouble(ApiResponse(204))
    request = ApiRequest("DELETE", "/api/v1/links/0123")
    requests = ForwardedRequests([worker])  # type: ignore[list-item] # a double
    assert outcome(requests.revoke(request, link_id="0123")).status == 204
    assert worker.received == [request]
