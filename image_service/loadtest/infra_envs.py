"""Infra-envs for a load test, registered with assisted-service's API and deregistered behind it."""

from __future__ import annotations

import http.client
import json
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from image_service.errors import Unavailable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

_COLLECTION = "/api/assisted-install/v2/infra-envs"
_SECONDS = 30.0
_LONGEST_DETAIL = 300


@contextmanager
def registered(
    api: str,
    count: int,
    build: tuple[str, str],
    token: str | None,
    context: ssl.SSLContext,
) -> Iterator[list[str]]:
    """Register infra-envs for as long as the block lasts. Blocks.

    Args:
        api: URL of the API's server.
        count: how many.
        build: version and architecture of their base image.
        token: bearer token of the API; None: it asks for none.
        context: whom to trust.

    Yields:
        their identifiers.

    Raises:
        Unavailable: the API cannot be reached, or refuses; says why.
    """
    version, architecture = build
    fields = {
        "openshift_version": version,
        "cpu_architecture": architecture,
        "ignition_config_override": '{"ignition": {"version": "3.2.0"}}',
    }
    with closing(_connect(api, context)) as connection:
        asked = _Api(connection, {"Authorization": f"Bearer {token}"} if token else {})
        made: list[str] = []
        try:
            for number in range(count):
                infra_env = asked.register({"name": f"loadtest-{number + 1}", **fields})
                made.append(infra_env)  # one by one: those that were made are to go, whatever happens
            yield made
        finally:
            connection.close()  # which the server may have done long ago; the next request opens another
            for infra_env in made:
                asked.deregister(infra_env)


def _connect(api: str, context: ssl.SSLContext) -> http.client.HTTPConnection:
    parts = urlsplit(api)
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.netloc, timeout=_SECONDS, context=context)
    return http.client.HTTPConnection(parts.netloc, timeout=_SECONDS)


class _Api:
    """The API, over a connection that is made anew where it has been closed."""

    def __init__(self, connection: http.client.HTTPConnection, credentials: Mapping[str, str]) -> None:
        self._connection = connection
        self._headers = {"Content-Type": "application/json", **credentials}

    def register(self, fields: Mapping[str, str]) -> str:
        status, body = self._ask("POST", _COLLECTION, json.dumps(fields))
        with suppress(ValueError, TypeError, KeyError):
            if status == http.client.CREATED:
                return str(json.loads(body)["id"])
        told = body[:_LONGEST_DETAIL].decode(errors="replace")
        raise Unavailable(f"the API registers no infra-env; it answers {status}: {told!a}")

    def deregister(self, infra_env: str) -> None:
        with suppress(Unavailable):  # it is no part of the test
            self._ask("DELETE", f"{_COLLECTION}/{infra_env}", None)

    def _ask(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        try:
            self._connection.request(method, path, body, self._headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Unavailable(f"the API cannot be asked: {str(error) or type(error).__name__}") from None
