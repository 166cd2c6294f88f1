"""Infra-envs for a load test: registered with assisted-service's API before it, deregistered after it."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from image_service.common.http.client import HttpClient
from image_service.common.http.errors import HttpError
from image_service.common.http.watch import RequestLimits

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

_COLLECTION = "/api/assisted-install/v2/infra-envs"
_TIMEOUT_SECONDS = 30.0
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
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
    client = _InfraEnvApi(api, context, {"Authorization": f"Bearer {token}"} if token else {})
    identifiers: list[str] = []
    try:
        for number in range(count):
            infra_env = client.register({"name": f"loadtest-{number + 1}", **fields})
            identifiers.append(infra_env)  # at once: those registered before an error are deregistered
        yield identifiers
    finally:
        for identifier in identifiers:
            client.deregister(identifier)


class _InfraEnvApi:
    def __init__(self, api: str, context: ssl.SSLContext, credentials: Mapping[str, str]) -> None:
        split = urlsplit(api)
        self._url = f"{split.scheme}://{split.netloc}{_COLLECTION}"
        self._http = HttpClient(lambda: context, RequestLimits(_TIMEOUT_SECONDS, _TIMEOUT_SECONDS))
        self._headers = {"Content-Type": "application/json", **credentials}

    def register(self, fields: Mapping[str, str]) -> str:
        status, body = self._request("POST", "", json.dumps(fields).encode())
        with suppress(ValueError, TypeError, KeyError):
            if status == HTTPStatus.CREATED:
                return str(json.loads(body)["id"])
        detail = body[:_MAX_DETAIL_BYTES].decode(errors="replace")
        raise RegistrationError(f"the API refused to register an infra-env: status {status}, {detail!a}")

    def deregister(self, infra_env: str) -> None:
        with suppress(RegistrationError):  # the result of the test does not depend on it
            self._request("DELETE", f"/{infra_env}", None)

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        try:
            with self._http.send(method, f"{self._url}{path}", self._headers, body) as response:
                return response.status, response.read(_MAX_ANSWER_BYTES)
        except HttpError as error:
            raise RegistrationError(f"the API is unreachable: {error}") from None
