"""A client of the administrative listener, and of the stand-in, for commands: blocking, without redirects."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs

from image_service.common.http.client import HttpClient
from image_service.common.http.errors import Disconnected, HttpError, TooSlow, UntrustedCertificate
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits
from image_service.core.errors import ConfigurationError, NotFound, Unavailable
from image_service.server.http.retry_after import parse_retry_after
from image_service.settings.admin import read_token

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_SECONDS = 10
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
_VERBS = {"GET": "fetch", "POST": "post to", "PATCH": "change", "DELETE": "delete"}


@attrs.frozen
class AdminClient:
    """Sends requests to a running service.

    Args:
        url: base URL of its administrative listener, or of one for clients if it has none.
        token_file: of the token; None: no token is sent.
        ca_file: PEM file of certificate authorities to trust beside those of the system.
        token: in the place of a file.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    token: str | None = attrs.field(default=None, repr=False)

    def get(self, path: str) -> bytes:
        """Return the content at a path.

        Raises:
            ConfigurationError: the file of the token or of the authorities cannot be used.
            NotFound: there is no such resource.
            Unavailable: the service cannot be reached, or refuses the request.
        """
        return self.request("GET", path)

    def post(self, path: str, document: object) -> bytes:
        """Send a JSON document, and return the content of the response; raises as `get` does."""
        return self.request("POST", path, document)

    def request(self, method: str, path: str, document: object = None) -> bytes:
        """Send a request, with a JSON document if it is not None; return and raise as `get` does."""
        body = None if document is None else json.dumps(document).encode()
        url = f"{self.url.rstrip('/')}{path}"
        failed = f"cannot {_VERBS[method]} {url}"
        limits = RequestLimits(connect_seconds=TIMEOUT_SECONDS, stall_seconds=TIMEOUT_SECONDS)
        http = HttpClient(partial(client_context, self.ca_file), limits)
        try:
            with http.send(method, url, self._headers(body), body) as response:
                status, content = response.status, response.read(MAX_RESPONSE_BYTES + 1)
                retry_after = parse_retry_after(response.field("Retry-After"))
        except HttpError as error:
            raise Unavailable(f"{failed}: {_reason(error)}") from None
        if status not in {HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT}:
            refusal = f"{failed}: {self._refusal(status, content)}"
            kind = NotFound if status == HTTPStatus.NOT_FOUND else Unavailable
            raise kind(refusal, retry_after_seconds=retry_after)
        if len(content) > MAX_RESPONSE_BYTES:
            raise Unavailable(f"{url} has more than {MAX_RESPONSE_BYTES} bytes")
        return content

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        if self.token_file is None and self.token is None:
            return headers
        if self.token_file is None:
            return {**headers, "Authorization": f"Bearer {self.token}"}
        try:
            return {**headers, "Authorization": f"Bearer {read_token(self.token_file)}"}
        except ValueError as error:
            raise ConfigurationError(f"--token-file {self.token_file}: {error}") from None

    def _refusal(self, status: int, body: bytes) -> str:
        if status == HTTPStatus.UNAUTHORIZED and self.token is not None and self.token_file is None:
            return "the service does not accept the token"
        if status == HTTPStatus.UNAUTHORIZED and self.token_file is None:
            return "the service requires a token; --token-file names its file"
        if status == HTTPStatus.UNAUTHORIZED:
            return f"the service does not accept the token in {self.token_file}"
        with suppress(ValueError, TypeError, KeyError):
            return f"status {status}: {json.loads(body)['detail']}"
        return f"status {status}"


def _reason(error: HttpError) -> str:
    if isinstance(error, UntrustedCertificate) and error.lacks_authority:
        return f"{error}; --ca-file names authorities to trust"
    if isinstance(error, TooSlow):
        hint = "; the port may not speak HTTPS" if error.in_handshake else ""
        return f"no response in {TIMEOUT_SECONDS} s{hint}"
    if isinstance(error, Disconnected) and error.is_connected:
        return f"{error}; if the port speaks HTTPS, write https://"
    return str(error)
