from __future__ import annotations

from typing import Any

import pytest
from openapi_spec_validator import validate

from image_service.common.openapi.document import ApiDescription, QueryParameter, openapi_document
from image_service.core.errors import MethodNotAllowed, NotFound
from image_service.server.web_api.messages import ApiRequest, ApiResponse, json_response
from image_service.server.web_api.operations import ApiOperation, routes
from image_service.server.web_api.router import ApiRouter
from tests.pytwisted import ensure_deferred


async def show(request: ApiRequest, thing_id: str) -> ApiResponse:
    return json_response([request.method, thing_id])


async def replace(request: ApiRequest, thing_id: str) -> ApiResponse:
    del request, thing_id
    return ApiResponse(204)


OPERATIONS = [
    ApiOperation("GET", "/things/{thing_id}", "getThing", "show a thing", show, reply="Thing"),
    ApiOperation("GET", "/things.json", "getThings", "show all things", show, reply="Thing"),
    ApiOperation(
        "PUT",
        "/things/{thing_id}",
        "putThing",
        "replace a thing",
        replace,
        status=204,
        body="Thing",
        query=(QueryParameter("force", "whatever it is; false"),),
    ),
]
SCHEMAS = {"Thing": {"type": "object"}, "Error": {"type": "object"}}


@ensure_deferred
async def test_handler_gets_the_segment() -> None:
    request = ApiRequest("GET", "/api/v1/things/a%20b")
    response = await ApiRouter(routes("/api/v1", OPERATIONS)).respond(request)
    assert response.body == json_response(["GET", "a%20b"]).body


@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        ("GET", "/api/v1/things/", NotFound),
        ("GET", "/api/v1/things/a/b", NotFound),
        ("DELETE", "/api/v1/things/a", MethodNotAllowed),
        ("GET", "/api/v1/thingsXjson", NotFound),
    ],
)
@ensure_deferred
async def test_anything_else_is_refused(method: str, path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await ApiRouter(routes("/api/v1", OPERATIONS)).respond(ApiRequest(method, path))


def test_document_is_valid_and_complete() -> None:
    api = ApiDescription("Things", "1", "Has things.", ("/api/v1", "/v1"))
    document: Any = openapi_document(api, OPERATIONS, SCHEMAS)
    validate(document)
    put = document["paths"]["/things/{thing_id}"]["put"]
    assert [each["name"] for each in put["parameters"]] == ["thing_id", "force"]
    assert document["servers"] == [{"url": "/api/v1"}, {"url": "/v1"}]
