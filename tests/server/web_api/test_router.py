"""Routes of a web API."""

from __future__ import annotations

import pytest

from image_service.core.errors import MethodNotAllowed, NotFound
from image_service.server.web_api.messages import ApiRequest, ApiResponse, json_response
from image_service.server.web_api.router import ApiRouter
from tests.pytwisted import ensure_deferred


async def show(request: ApiRequest, name: str) -> ApiResponse:
    return json_response({request.method: name})


async def create(request: ApiRequest) -> ApiResponse:
    return ApiResponse(201, request.body)


ROUTER = ApiRouter({"/things/?": {"POST": create}, "/things/(?P<name>[a-z]+)": {"GET": show, "DELETE": show}})


@ensure_deferred
async def test_handler_gets_the_named_groups_of_the_path() -> None:
    assert (await ROUTER.respond(ApiRequest("DELETE", "/things/a"))).body == b'{"DELETE": "a"}\n'
    assert (await ROUTER.respond(ApiRequest("POST", "/things", body=b"x"))).body == b"x"


@pytest.mark.parametrize("path", ["/", "/things/A", "/things/a/b", "/other"])
@ensure_deferred
async def test_unknown_path_is_not_found(path: str) -> None:
    with pytest.raises(NotFound):
        await ROUTER.respond(ApiRequest("GET", path))


@pytest.mark.parametrize(("path", "allow"), [("/things/", "POST"), ("/things/a", "GET, DELETE, HEAD")])
@ensure_deferred
async def test_other_method_is_refused_with_allow(path: str, allow: str) -> None:
    with pytest.raises(MethodNotAllowed) as refused:
        await ROUTER.respond(ApiRequest("PUT", path))
    assert refused.value.fields == (("Allow", allow),)
