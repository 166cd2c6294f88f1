from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred

from image_service.core.errors import ImageServiceError, NotFound, Unavailable
from image_service.jobs.metrics.jobs_metrics import COMPOSER, MeasuredRequest
from image_service.jobs.metrics.measured_api import MeasuredApi
from image_service.jobs.principal import Principal
from image_service.server.web_api.messages import ApiRequest, ApiResponse, problem_response
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from collections.abc import Callable

BASE = "/api/image-builder-composer/v2"


class Api:
    """Does with each request as a test says."""

    max_body_bytes = 1000

    def __init__(self, act: Callable[[], ApiResponse]) -> None:
        self.base_paths: tuple[str, ...] = ("/api/other", BASE)
        self.act = act

    async def respond(self, request: ApiRequest) -> ApiResponse:
        del request
        return self.act()

    def render_error(self, error: ImageServiceError) -> ApiResponse:
        return problem_response(error)

    def is_streamed(self, method: str, path: str) -> bool:
        return (method, path) == ("PUT", "/content")

    def authorization_of(self, request: ApiRequest) -> str | None:
        return request.headers.get("authorization")


async def nothing(_: ApiRequest) -> ApiResponse:
    return ApiResponse()


OPERATIONS = (
    ApiOperation("GET", "/composes/", "list", "list", nothing),
    ApiOperation("GET", "/composes/{id}", "status", "status", nothing),
    ApiOperation("DELETE", "/composes/{id}", "delete", "delete", nothing),
)


@attrs.define
class Recorded:
    """The recorded requests."""

    requests: list[tuple[str, MeasuredRequest]] = attrs.field(factory=list)

    def record_request(self, api: str, request: MeasuredRequest) -> None:
        self.requests.append((api, request))


def send(
    act: Callable[[], ApiResponse], path: str = "/composes/1234", method: str = "GET"
) -> tuple[list[Any], Recorded]:
    """Return the outcome of a request that takes 2 s, and the recorded requests."""
    times = iter((5.0, 7.0))
    recorded: Any = Recorded()
    api = MeasuredApi(COMPOSER, Api(act), OPERATIONS, recorded, lambda: next(times))
    outcome: list[Any] = []
    request = ApiRequest(method, f"{BASE}{path}", principal=Principal("org-42"))
    Deferred.fromCoroutine(api.respond(request)).addBoth(outcome.append)
    return outcome, recorded


def fail(error: Exception) -> Callable[[], ApiResponse]:
    def act() -> ApiResponse:
        raise error

    return act


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/composes/1234", "/composes/{id}"),
        ("/composes/", "/composes/"),
        ("/composes/1/2", "other"),
        ("/", "other"),
    ],
    ids=["id", "list", "deeper", "root"],
)
def test_request_is_recorded_by_its_route(path: str, route: str) -> None:
    _, recorded = send(lambda: ApiResponse(201), path)
    assert recorded.requests == [(COMPOSER, MeasuredRequest("GET", route, 201, "org-42", 2.0))]


def test_methods_that_clients_make_up_are_recorded_as_one() -> None:
    _, recorded = send(lambda: ApiResponse(405), method="MADEUP")
    assert [request.method for _, request in recorded.requests] == ["other"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(NotFound("no"), 404), (Unavailable("not now"), 503)],
    ids=["not-found", "unavailable"],
)
def test_error_is_rendered_and_recorded(error: ImageServiceError, status: int) -> None:
    outcome, recorded = send(fail(error))
    assert outcome[0].status == status
    assert [request.status for _, request in recorded.requests] == [status]


def test_unexpected_error_is_recorded_and_raised() -> None:
    outcome, recorded = send(fail(ZeroDivisionError()))
    assert outcome[0].check(ZeroDivisionError)
    assert [request.status for _, request in recorded.requests] == [500]


def test_client_that_has_left_is_not_recorded() -> None:
    outcome, recorded = send(fail(CancelledError()))
    assert outcome[0].check(CancelledError)
    assert recorded.requests == []


def test_other_questions_are_answered_by_the_api() -> None:
    recorded: Any = Recorded()
    api = MeasuredApi(COMPOSER, Api(ApiResponse), OPERATIONS, recorded)
    assert api.base_paths == ("/api/other", BASE)
    assert api.is_streamed("PUT", "/content")
    assert api.render_error(NotFound("no")).status == 404
