from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.web.http_headers import Headers

from image_service.core.errors import (
    ImageServiceError,
    MisdirectedRequest,
    NotFound,
    Unauthorized,
    Unavailable,
)
from image_service.jobs.api.front import ApiFront
from image_service.jobs.dispatch.upload_slots import UploadSlots
from image_service.jobs.principal import Principal
from image_service.server.transport.admission.rate import ClientRate
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.messages import ApiRequest, ApiResponse, json_response
from tests.pytwisted import ensure_deferred


class NamedApi:
    max_body_bytes = 1000

    def __init__(self, name: str, *base_paths: str) -> None:
        self.name = name
        self.base_paths = base_paths
        self.requests: list[ApiRequest] = []

    async def respond(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request)
        return ApiResponse()

    def render_error(self, error: ImageServiceError) -> ApiResponse:
        return json_response([self.name, error.code])

    def is_streamed(self, method: str, path: str) -> bool:
        return (method, path) == ("PUT", f"{self.base_paths[0]}/file")

    def authorization_of(self, request: ApiRequest) -> str | None:
        return request.headers.get("authorization")


class SigningApi(NamedApi):
    paths = frozenset({"/", "/services/compute"})


class SentContent:
    def __init__(self) -> None:
        self.rate = ClientRate(lambda: 0, lambda: True)
        self.is_aborted = False

    def abort(self, reason: str) -> None:
        assert reason
        self.is_aborted = True


class TokenAuthenticator:
    async def authenticate(self, authorization: str | None, *, is_local: bool) -> Principal:
        if authorization is None:
            raise Unauthorized("a token is required")
        return Principal(f"org-{authorization}", is_operator=is_local)


def make(*apis: NamedApi, signed_api: SigningApi | None = None) -> ApiFront:
    return ApiFront(TokenAuthenticator(), apis, signed_api)


def get(path: str, token: str | None = None, client: str = "192.0.2.1") -> ApiRequest:
    return ApiRequest("GET", path, headers={} if token is None else {"authorization": token}, client=client)


@ensure_deferred
async def test_requests_go_to_the_api_of_their_path_with_their_principal() -> None:
    first, second = NamedApi("first", "/api/a/v1", "/api/b/v1"), NamedApi("second", "/api/c")
    front = make(first, second)
    await front.respond(get("/api/a/v1/jobs", "1"))
    await front.respond(get("/api/b/v1/jobs", "2", client=""))
    await front.respond(get("/api/c/d", "3"))
    assert [each.principal for each in first.requests] == [
        Principal("org-1"),
        Principal("org-2", is_operator=True),
    ]
    assert [each.principal for each in second.requests] == [Principal("org-3")]


@ensure_deferred
async def test_only_documents_and_errors_are_public() -> None:
    api = NamedApi("a", "/api/a")
    front = make(api)
    for path in ("/api/a/openapi", "/api/a/openapi.json", "/api/a/errors", "/api/a/errors/5"):
        await front.respond(get(path))
    for path in ("/api/a/status", "/api/a/openapi/x", "/api/a/composes/openapi"):
        with pytest.raises(Unauthorized):
            await front.respond(get(path))
    assert len(api.requests) == 4


@pytest.mark.parametrize("path", ["/", "/api/a", "/api/ab/c", "/x/api/a/c"])
@ensure_deferred
async def test_other_paths_are_404(path: str) -> None:
    with pytest.raises(NotFound):
        await make(NamedApi("a", "/api/a")).respond(get(path, "1"))


def test_each_api_renders_its_errors_and_streams_its_content() -> None:
    resource = make(NamedApi("a", "/api/a"), NamedApi("b", "/api/b")).resource(RequestGuard())
    assert resource._render_error(NotFound(""), "/api/b/x").body == b'["b", "not-found"]\n'
    assert resource._render_error(NotFound(""), "/c").content_type == "application/problem+json"
    assert resource.is_streamed("PUT", "/api/b/file")
    assert not resource.is_streamed("PUT", "/api/a/other")


@ensure_deferred
async def test_a_signed_api_authenticates_its_requests_itself() -> None:
    signed_api = SigningApi("signed")
    front = make(NamedApi("a", "/api/a"), signed_api=signed_api)
    for path in signed_api.paths:
        await front.respond(get(path))
    assert [request.principal for request in signed_api.requests] == [None, None]
    with pytest.raises(NotFound):
        await front.respond(get("/services/other", "1"))


@ensure_deferred
async def test_heads_of_signed_requests_are_not_checked() -> None:
    """Their Host may be any name, and their content a form; its size has the limit of the API."""
    front = make(NamedApi("a", "/api/a"), signed_api=SigningApi("signed"))
    async with front._admit(get("/services/compute"), SentContent()) as limit:
        assert limit == 1000
    guard = front.resource(RequestGuard())._guard
    headers = Headers(
        {"Host": ["images.example.com"], "Content-Type": ["text/plain"], "Origin": ["http://a"]}
    )
    guard.check_head("POST", "/services/compute", headers)
    with pytest.raises(MisdirectedRequest):
        guard.check_head("POST", "/api/a/b", headers)


@ensure_deferred
async def test_large_requests_have_slots_and_slow_ones_lose_theirs_to_another_tenant() -> None:
    clock = Clock()
    slots = UploadSlots(2, 1000, clock, most_of_source=3)
    front = ApiFront(TokenAuthenticator(), [NamedApi("a", "/api/a")], large_requests=slots)
    admitted: list[str] = []

    async def send(tenant: str, content: SentContent) -> None:
        async with front._admit(get("/api/a/b", tenant), content) as limit:
            assert limit == 1000
            admitted.append(tenant)
            await Deferred()

    slow = [SentContent() for _ in range(3)]
    sending = [Deferred.fromCoroutine(send("1", content)) for content in slow]
    with pytest.raises(Unavailable):
        await send("1", SentContent())
    sending.append(Deferred.fromCoroutine(send("2", SentContent())))
    assert admitted == ["1", "2"]
    sending.append(Deferred.fromCoroutine(send("3", SentContent())))
    clock.pump([0.5] * 20)
    assert [content.is_aborted for content in slow] == [True, False, False]
    for each in sending:
        each.addErrback(lambda _: None)
        each.cancel()
    assert admitted == ["1", "2", "3"]
