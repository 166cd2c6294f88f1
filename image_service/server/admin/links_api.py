"""Operations on short links, their QR codes, and the sizes of what they may stand for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import attrs
import segno

from image_service.common.openapi.bodies import schemas_of
from image_service.common.openapi.document import BOOLEAN, COUNT, TEXT, list_schema, object_schema
from image_service.core.errors import InvalidParameter
from image_service.server.links.link import LinkBody
from image_service.server.links.links import LinkRequest, MadeLink
from image_service.server.web_api.messages import ApiResponse, json_response, parse_json_object
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from image_service.common.openapi.document import Json, Schemas
    from image_service.server.links.links import Links
    from image_service.server.web_api.messages import ApiRequest

PATH = "/api/v1/links"
DEFAULT_SECONDS = 86400
MAX_URL = 8192
"""Characters; as many as a request target has."""
MAX_LABEL = 200
MAX_QR_URL = 300
"""Characters of a URL; a code of more is too dense for the camera of a phone."""
_QR_URL = re.compile(f"[!-~]{{1,{MAX_QR_URL}}}")
_URL_SCHEMA: Json = {"type": "string", "minLength": 1, "maxLength": MAX_URL}


class LinkHandlers(Protocol):
    """Responds to the operations."""

    def make(self, request: ApiRequest) -> Awaitable[ApiResponse]:
        """Make a link."""

    def list_usable(self, request: ApiRequest) -> Awaitable[ApiResponse]:
        """List the links that can be used."""

    def revoke(self, request: ApiRequest, *, link_id: str) -> Awaitable[ApiResponse]:
        """End a link."""

    def find_size(self, request: ApiRequest) -> Awaitable[ApiResponse]:
        """Find the size of an image."""


@attrs.frozen
class LinksApi:
    """The API of short links.

    Args:
        handlers: in this process, or of another.
        max_seconds: how long a link may be valid.
    """

    _handlers: LinkHandlers
    _max_seconds: int

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """See `AdminApi`."""
        handlers = self._handlers
        return (
            ApiOperation(
                "POST",
                PATH,
                "makeLink",
                "make a short link",
                handlers.make,
                status=201,
                body="NewLink",
                reply="MadeLink",
            ),
            ApiOperation(
                "GET",
                PATH,
                "getLinks",
                "list the short links that can be used, without their secret parts",
                handlers.list_usable,
                reply="Links",
            ),
            ApiOperation(
                "DELETE",
                f"{PATH}/{{link_id}}",
                "revokeLink",
                "end a short link at once",
                handlers.revoke,
                status=204,
            ),
            ApiOperation(
                "POST",
                "/api/v1/qr-codes",
                "encodeQrCode",
                "encode a URL as a QR code",
                _encode_qr_code,
                body="EncodedUrl",
                reply="QrCode",
            ),
            ApiOperation(
                "POST",
                "/api/v1/image-sizes",
                "findImageSize",
                "find the size of an image, or of a file of a base image, by its URL",
                handlers.find_size,
                body="ImageUrl",
                reply="ImageSize",
            ),
        )

    @property
    def schemas(self) -> Schemas:
        """See `AdminApi`."""
        seconds: Json = {"type": "integer", "minimum": 1, "maximum": self._max_seconds}
        return {
            "EncodedUrl": object_schema(url={**TEXT, "pattern": f"^{_QR_URL.pattern}$"}),
            "ImageUrl": object_schema(url=_URL_SCHEMA),
            "ImageSize": object_schema(size=COUNT),
            "QrCode": object_schema(rows={"type": "array", "items": {**TEXT, "pattern": "^[01]+$"}}),
            "NewLink": {
                "type": "object",
                "required": ["url"],
                "properties": {
                    "url": _URL_SCHEMA,
                    "expires_in": {**seconds, "default": min(DEFAULT_SECONDS, self._max_seconds)},
                    "label": {"type": "string", "maxLength": MAX_LABEL, "default": ""},
                    "pinned": {**BOOLEAN, "default": False},
                },
                "additionalProperties": False,
            },
            "Links": object_schema(links=list_schema("Link")),
            **schemas_of(LinkBody, MadeLink),
        }


@attrs.frozen
class LocalLinks:
    """Responds by the links of this process. See `LinkHandlers`."""

    _links: Links

    async def make(self, request: ApiRequest) -> ApiResponse:
        """Make a link."""
        made = await self._links.make(
            parse_link_request(request.body, self._links.max_seconds), request.client
        )
        fields = (("Location", f"{PATH}/{made.id}"),)
        return json_response(made, status=201, fields=fields)

    async def list_usable(self, _: ApiRequest) -> ApiResponse:
        """List the links that can be used."""
        return json_response({"links": await self._links.list_usable()})

    async def revoke(self, _: ApiRequest, *, link_id: str) -> ApiResponse:
        """End a link."""
        await self._links.revoke(unquote(link_id))
        return ApiResponse(204)

    async def find_size(self, request: ApiRequest) -> ApiResponse:
        """Find the size of an image."""
        size = await self._links.find_size(_parse_url(request.body), request.client)
        return json_response({"size": size})


async def _encode_qr_code(request: ApiRequest) -> ApiResponse:
    url = _parse_url(request.body)
    if not _QR_URL.fullmatch(url):
        raise InvalidParameter(f"url must have 1 to {MAX_QR_URL} characters of ASCII, none of them a blank")
    code = segno.make_qr(url, error="m")
    return json_response({"rows": ["".join(map(str, row)) for row in code.matrix]})


def _parse_url(body: bytes) -> str:
    match parse_json_object(body):
        case {"url": str(url), **others} if not others:
            return url
    raise InvalidParameter("url must be the only member, a string")


def parse_link_request(body: bytes, max_seconds: int) -> LinkRequest:
    """Return the request of the content.

    Raises:
        InvalidRequest: the content is not a JSON object.
        InvalidParameter: a member is missing, unknown or has an invalid value; the detail lists all faults.
    """
    document: dict[str, Any] = {
        "expires_in": min(DEFAULT_SECONDS, max_seconds),
        "label": "",
        "pinned": False,
        **parse_json_object(body),
    }
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "url": (_is_text(1, MAX_URL), f"a string of 1 to {MAX_URL} characters"),
        "expires_in": (_is_number(max_seconds), f"a whole number of seconds from 1 to {max_seconds}"),
        "label": (_is_text(0, MAX_LABEL), f"a string of at most {MAX_LABEL} printable characters"),
        "pinned": (lambda value: isinstance(value, bool), "true or false"),
    }
    faults = [f"{name!a:.60} is not known" for name in document if name not in checks]
    faults += [
        f"{name} must be {right}"
        for name, (is_right, right) in checks.items()
        if not is_right(document.get(name))
    ]
    if faults:
        raise InvalidParameter("; ".join(faults))
    return LinkRequest(**document)


def _is_text(minimum: int, maximum: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and minimum <= len(value) <= maximum and value.isprintable()


def _is_number(maximum: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 1 <= value <= maximum
