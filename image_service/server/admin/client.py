"""A client of the administrative listener, for commands: blocking, without redirects and proxies."""

from __future__ import annotations

import json
import ssl
from contextlib import closing, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection, RemoteDisconnected
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from image_service.core.errors import ConfigurationError, Unavailable
from image_service.settings.admin import read_token

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_SECONDS = 10
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
_NO_HTTPS = "; the port may not speak HTTPS"


@attrs.frozen
class AdminClient:
    """Sends requests to a running service.

    Args:
        url: base URL of its administrative listener, or of one for clients if it has none.
        token_file: of the token; None: no token is sent.
        ca_file: PEM file of certificate authorities to trust beside those of the system.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def get(self, path: str) -> bytes:
        """Return the content at a path.

        Raises:
            ConfigurationError: the file of the token or of the authorities cannot be used.
            Unavailable: the service cannot be reached, or refuses the request.
        """
        return self._request("GET", path)

    def post(self, path: str, document: object) -> bytes:
        """Send a JSON document, and return the content of the response; raises as `get` does."""
        return self._request("POST", path, json.dumps(document).encode())

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        split = urlsplit(f"{self.url.rstrip('/')}{path}")
        failed = f"cannot {'fetch' if method == 'GET' else 'post to'} {split.geturl()}"
        connection = self._connection(split.scheme, split.netloc)
        try:
            with closing(connection):
                connection.request(method, split.path, body, self._headers(body))
                response = connection.getresponse()
                status, body = response.status, response.read(MAX_RESPONSE_BYTES + 1)
        except (OSError, HTTPException) as error:
            raise Unavailable(f"{failed}: {_reason(error)}") from None
        if status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
            raise Unavailable(f"{failed}: {self._refusal(status, body)}")
        if len(body) > MAX_RESPONSE_BYTES:
            raise Unavailable(f"{split.geturl()} has more than {MAX_RESPONSE_BYTES} bytes")
        return body

    def _connection(self, scheme: str, netloc: str) -> HTTPConnection:
        if scheme == "http":
            return HTTPConnection(netloc, timeout=TIMEOUT_SECONDS)
        context = ssl.create_default_context()
        if self.ca_file is not None:
            try:
                context.load_verify_locations(self.ca_file)
            except OSError as error:  # SSLError is one
                reason = getattr(error, "reason", None) or error.strerror
                raise ConfigurationError(f"the CA file {self.ca_file} cannot be read: {reason}") from None
        return HTTPSConnection(netloc, timeout=TIMEOUT_SECONDS, context=context)

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        if self.token_file is None:
            return headers
        try:
            return {**headers, "Authorization": f"Bearer {read_token(self.token_file)}"}
        except ValueError as error:
            raise ConfigurationError(f"--token-file {self.token_file}: {error}") from None

    def _refusal(self, status: int, body: bytes) -> str:
        if status == HTTPStatus.UNAUTHORIZED and self.token_file is None:
            return "the service requires a token; --token-file names its file"
        if status == HTTPStatus.UNAUTHORIZED:
            return f"the service does not accept the token in {self.token_file}"
        with suppress(ValueError, TypeError, KeyError):
            return f"status {status}: {json.loads(body)['detail']}"
        return f"status {status}"


def _reason(error: OSError | HTTPException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}; --ca-file names authorities to trust"
    if isinstance(error, ssl.SSLError):
        hint = _NO_HTTPS if error.reason == "WRONG_VERSION_NUMBER" else ""
        return f"TLS failed: {error.reason or error.strerror}{hint}"
    if isinstance(error, RemoteDisconnected):
        return "the connection ended without a response; if the port speaks HTTPS, write https://"
    if isinstance(error, TimeoutError):
        hint = _NO_HTTPS if "handshake" in str(error) else ""
        return f"no response in {TIMEOUT_SECONDS} s{hint}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
