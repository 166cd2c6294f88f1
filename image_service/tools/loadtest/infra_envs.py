"""Infra-envs for a load test: registered with assisted-service's API before it, deregistered after it."""

from __future__ import annotations

import http.client
import json
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

_COLLECTION = "/api/assisted-install/v2/infra-envs"
_TIMEOUT_SECONDS = 30.0
_MAX_DETAIL_BYTES = 300


class RegistrationError(Exception):
    """The API is unreachable, or refused to register an infra-env; the message says why."""


@contextmanager
def registered(
    api: str,
    count: int,
    build: tuple[str, str],
    token: str | None,
    context: ssl.SSLContext,
) -> Iterator[list[str]]:
    """Register infra-envs for the duration of the block. Blocks.

    Args:
        api: URL of the API's server.
        build: version and architecture of their base image.
        token: bearer token of the API, if it needs one.

    Yields:
        their identifiers.

    Raises:
        RegistrationError: the API is unreachable or refused.
    """
    version, architecture = build
    fields = {
        "openshift_version": version,
        "cpu_architecture": architecture,
        "ignition_config_override": '{"ignition": {"version": "3.2.0"}}',
    }
    parts = urlsplit(api)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT_SECONDS, context=context)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_SECONDS)
    with closing(connection):
        client = _InfraEnvApi(connection, {"Authorization": f"Bearer {token}"} if token else {})
        identifiers: list[str] = []
        try:
            for number in range(count):
                infra_env = client.register({"name": f"loadtest-{number + 1}", **fields})
                identifiers.append(infra_env)  # at once: those registered before an error are deregistered
            yield identifiers
        finally:
            connection.close()  # the server may have closed it during the test; a request reconnects
            for identifier in identifiers:
                client.deregister(identifier)


class _InfraEnvApi:
    """The API's client, over a connection that reconnects when it was closed."""

    def __init__(self, connection: http.client.HTTPConnection, credentials: Mapping[str, str]) -> None:
        self._connection = connection
        self._headers = {"Content-Type": "application/json", **credentials}

    def register(self, fields: Mapping[str, str]) -> str:
        status, body = self._request("POST", _COLLECTION, json.dumps(fields))
        with suppress(ValueError, TypeError, KeyError):
            if status == http.client.CREATED:
                return str(json.loads(body)["id"])
        detail = body[:_MAX_DETAIL_BYTES].decode(errors="replace")
        raise RegistrationError(f"the API refused to register an infra-env: status {status}, {detail!a}")

    def deregister(self, infra_env: str) -> None:
        with suppress(RegistrationError):  # the result of the test does not depend on it
            self._request("DELETE", f"{_COLLECTION}/{infra_env}", None)

    def _request(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        try:
            self._connection.request(method, path, body, self._headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise RegistrationError(f"the API is unreachable: {str(error) or type(error).__name__}") from None
