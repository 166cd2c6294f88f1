"""Operations on the session of a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.common.openapi.document import object_schema
from image_service.core.errors import Unauthorized
from image_service.server.web_api.messages import ApiResponse, json_response
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.common.openapi.document import Schemas
    from image_service.server.web_api.messages import ApiRequest
    from image_service.server.web_api.sessions import Sessions

_PATH = "/api/v1/session"


@attrs.frozen
class SessionApi:
    """Begins, shows and ends the session of a browser. See `AdminApi`.

    Args:
        is_needed: the listener needs a token, for which a session stands.
    """

    _sessions: Sessions
    _is_needed: bool
    _log = Logger()

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """See `AdminApi`."""
        summary = "show for how many seconds the session of this browser lasts; null: it has none"
        show = ApiOperation("GET", _PATH, "getSession", summary, self._show, reply="Session")
        if not self._is_needed:
            return (show,)
        return (
            show,
            ApiOperation(
                "POST",
                _PATH,
                "beginSession",
                "begin a session: a cookie then stands for the token of this request",
                self._begin,
                status=204,
            ),
            ApiOperation("DELETE", _PATH, "endSession", "end the session", self._end, status=204),
        )

    @property
    def schemas(self) -> Schemas:
        """See `AdminApi`."""
        return {"Session": object_schema(expires_in={"type": ["integer", "null"], "minimum": 0})}

    async def _show(self, request: ApiRequest) -> ApiResponse:
        left = self._sessions.seconds_left(*_of_browser(request))
        return json_response({"expires_in": None if left is None else int(left)})

    async def _begin(self, request: ApiRequest) -> ApiResponse:
        if "authorization" not in request.headers:
            raise Unauthorized("a session begins with the token, not with another session")
        host, _ = _of_browser(request)
        cookie = self._sessions.begin(host, is_secure=request.is_secure)
        self._log.info("began a session of a browser at {client}", client=request.client)
        return ApiResponse(204, fields=(("Set-Cookie", cookie),))

    async def _end(self, request: ApiRequest) -> ApiResponse:
        cookie = self._sessions.end(*_of_browser(request))
        self._log.info("ended a session of a browser at {client}", client=request.client)
        return ApiResponse(204, fields=(("Set-Cookie", cookie),))


def _of_browser(request: ApiRequest) -> tuple[str, str]:
    """Return the fields by which a session is found: ``Host`` and ``Cookie``."""
    return request.headers["host"], request.headers.get("cookie", "")
