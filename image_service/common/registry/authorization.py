"""Authorization of requests to registries: Basic, or tokens that are fetched, kept, and fetched again."""

from __future__ import annotations

import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

import attrs

from image_service.common.registry.challenges import parse_challenges, parse_token, token_url
from image_service.common.registry.errors import RegistryFailed
from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from image_service.common.registry.challenges import BearerToken, Challenge
    from image_service.common.registry.connections import RegistryCall, RegistryConnections, RegistryOptions
    from image_service.common.registry.credentials import RegistryCredentials
    from image_service.common.registry.mirrors import Endpoint

_EARLY_SECONDS = 5.0
"""A token is given up before its end, or it would end on the way."""
_MAX_ANSWER_BYTES = 64 * 1024


@attrs.frozen
class _Authorization:
    value: str = attrs.field(repr=False)
    ends_at: float


class RegistryAuthorization:
    """Authorization by repository; may be used in several threads.

    Args:
        actions: for which tokens are asked.
    """

    def __init__(
        self, options: RegistryOptions, connections: RegistryConnections, actions: str = "pull"
    ) -> None:
        self._options = options
        self._connections = connections
        self._actions = actions
        self._lock = threading.Lock()
        self._known: dict[Endpoint, _Authorization] = {}

    def find(self, endpoint: Endpoint) -> str:
        """Return the value of Authorization for a repository; empty: none is known yet."""
        with self._lock:
            known = self._known.get(endpoint)
            return known.value if known is not None and time.monotonic() < known.ends_at else ""

    def answer(self, endpoint: Endpoint, field: str, call: RegistryCall, *, is_plain: bool) -> None:
        """Get what a challenge asks for, to be returned by `find`.

        Args:
            field: ``WWW-Authenticate`` of the answer 401.
            is_plain: the registry was reached without TLS.

        Raises:
            RegistryFailed: there are no credentials, or they are refused.
            HttpError: the token server cannot be reached.
        """
        credentials = self._options.credentials.get().find(endpoint.registry, endpoint.repository)
        challenges = {each.scheme: each for each in reversed(parse_challenges(field))}
        if (bearer := challenges.get("bearer")) is not None:
            token = self._fetch_token(endpoint, bearer, credentials, call, is_plain=is_plain)
            seconds = max(token.seconds - _EARLY_SECONDS, token.seconds / 2)
            self._keep(endpoint, f"Bearer {token.text}", seconds)
        elif credentials is None:
            raise RegistryFailed(f"{endpoint}: needs credentials, and there are none for it", status=401)
        elif "basic" not in challenges or credentials.identity_token:
            raise RegistryFailed(f"{endpoint}: asks for an authentication that is not known", status=401)
        else:
            self._keep(endpoint, credentials.basic, float("inf"))

    def forget(self, endpoint: Endpoint) -> None:
        """Forget the credentials or token that the registry has refused."""
        with self._lock:
            self._known.pop(endpoint, None)

    def _keep(self, endpoint: Endpoint, value: str, seconds: float) -> None:
        with self._lock:
            self._known[endpoint] = _Authorization(value, time.monotonic() + seconds)

    def _fetch_token(
        self,
        endpoint: Endpoint,
        challenge: Challenge,
        credentials: RegistryCredentials | None,
        call: RegistryCall,
        *,
        is_plain: bool,
    ) -> BearerToken:
        try:
            url = token_url(challenge, f"repository:{endpoint.repository}:{self._actions}", is_plain=is_plain)
        except FormatError as error:
            raise RegistryFailed(f"{endpoint}: {error.detail}", status=401) from None
        split = urlsplit(url)
        client = self._connections.client_of(split.netloc.lower())
        method, fields, body = "GET", {}, None
        if credentials is not None and credentials.identity_token:
            form = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token}
            body = urlencode({**dict(parse_qsl(split.query)), **form, "client_id": "image-service"}).encode()
            method, fields = "POST", {"Content-Type": "application/x-www-form-urlencoded"}
            url = split._replace(query="").geturl()
        elif credentials is not None:
            fields = {"Authorization": credentials.basic}
        with client.send(
            method, url, fields, body, limits=call.limits, interruption=call.interruption
        ) as response:
            if response.status != HTTPStatus.OK:
                of_what = "its credentials" if credentials else "a request without credentials"
                raise RegistryFailed(
                    f"{endpoint}: its token server answered {of_what} with status {response.status}",
                    status=response.status,
                    retry_after=response.field("Retry-After"),
                )
            content = response.read(_MAX_ANSWER_BYTES)
        try:
            return parse_token(content)
        except FormatError as error:
            raise RegistryFailed(f"{endpoint}: {error.detail}") from None
