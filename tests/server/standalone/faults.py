"""The stand-in as a test double: it counts the requests of the service, and misbehaves on demand.

    standalone.calls[infra_env_id, Call.IGNITION]                              # how often
    standalone.faults[Call.IGNITION] = Fault(sign_token=True, last_modified=False)
    standalone.faults |= dict.fromkeys(Call, Fault(status=503, fields=(("Retry-After", "7"),)))
    standalone.faults.clear()

Both concern the HTTPS listener for image-service itself, not that of the API.
"""

from __future__ import annotations

import enum
import hmac
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from image_service.core.errors import Unauthorized
from image_service.core.images.reference import Credentials, CredentialScheme
from image_service.server.assisted.calls import API_KEY_PARAMETER, CREDENTIAL_FIELDS
from image_service.server.standalone.content import merge
from image_service.server.standalone.service import Standalone
from image_service.server.web_api.resource import ApiResource, write_head
from tests.server.standalone.tokens import TokenSigner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from twisted.internet.interfaces import IReactorTime, ITCPTransport
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.web.http_headers import Headers
    from twisted.web.server import Request

    from image_service.server.standalone.assisted_api import InfraEnvApi
    from image_service.server.web_api.authentication import RequestGuard
    from image_service.server.web_api.messages import ApiRequest, ApiResponse
    from image_service.settings.parsers import ListenAddress


class Call(enum.Enum):
    """The calls of image-service, by the path after the infra-env's id."""

    INFRA_ENV = ""
    IGNITION = "/downloads/files"
    RAMDISK = "/downloads/minimal-initrd"


class Break(enum.Enum):
    """How a connection fails."""

    RESET = "reset"  # instead of a response
    GARBAGE = "garbage"  # instead of HTTP
    HANG = "hang"  # no byte
    HALF_BODY = "half body"  # then closed
    STALL = "stall"  # half the body, then no byte


@attrs.frozen
class Fault:
    """What is different about the responses to one kind of call.

    Args:
        delay_seconds: before the response.
        status: instead of 200; None: unchanged.
        fields: further header fields, such as ``Set-Cookie``, ``Location`` or ``WWW-Authenticate``.
        body: instead of the content; None: unchanged.
        broken: how the connection fails; None: it does not.
        sign_token: put a new ES256 token into each Ignition config, as local authentication does.
        last_modified: send Last-Modified.
        credentials: required, otherwise 401; None: none.
    """

    delay_seconds: float = 0.0
    status: int | None = None
    fields: tuple[tuple[str, str], ...] = ()
    body: bytes | None = attrs.field(default=None, repr=False)
    broken: Break | None = None
    sign_token: bool = False
    last_modified: bool = True
    credentials: Credentials | None = None


_CALL = re.compile(
    "/api/assisted-install/v2/infra-envs/(?P<infra_env_id>[0-9a-f-]{36})"
    "(?P<call>|/downloads/files|/downloads/minimal-initrd)"
)


class FaultyStandalone(Standalone):
    """The stand-in with counters and faults.

    Attributes:
        calls: requests of image-service, by infra-env and call.
        faults: by call.
    """

    def __init__(
        self,
        reactor: PosixReactorBase,
        data_dir: Path,
        listen: ListenAddress,
        token: str | None,
        get_base_url: Callable[[], str],
    ) -> None:
        super().__init__(reactor, data_dir, listen, token, get_base_url)
        self.calls: Counter[tuple[str, Call]] = Counter()
        self.faults: dict[Call, Fault] = {}
        self._clock = reactor

    def service_resource(self, guard: RequestGuard, api: InfraEnvApi) -> ApiResource:
        """Return the resource that counts and fails."""
        return FaultyResource(guard, api, self.calls, self.faults, self._clock)


class FaultyResource(ApiResource):
    """Counts requests, and changes responses by the faults."""

    def __init__(
        self,
        guard: RequestGuard,
        api: InfraEnvApi,
        calls: Counter[tuple[str, Call]],
        faults: Mapping[Call, Fault],
        clock: IReactorTime,
    ) -> None:
        super().__init__(guard, api.respond_to_service)
        self._calls = calls
        self._faults = faults
        self._clock = clock
        self._signer = TokenSigner()

    async def respond(self, request: Request, api_request: ApiRequest) -> ApiResponse:
        """Count the request, and apply the fault of its call."""
        match = _CALL.fullmatch(api_request.path)
        if match is None or api_request.method != "GET":
            return await super().respond(request, api_request)
        infra_env_id, call = match["infra_env_id"], Call(match["call"])
        self._calls[infra_env_id, call] += 1
        fault = self._faults.get(call, Fault())
        if fault.delay_seconds:
            await deferLater(self._clock, fault.delay_seconds)
        if fault.credentials is not None:
            _check_credentials(fault.credentials, api_request, request.requestHeaders)
        await _break_before(request, fault)
        response = await super().respond(request, api_request)
        if fault.sign_token and call is Call.IGNITION:
            agent = agent_config(self._signer.sign(infra_env_id))
            response = attrs.evolve(
                response, body=json.dumps(merge(agent, json.loads(response.body))).encode()
            )
        response = _changed(response, fault)
        await _break_within(request, response, fault)
        return response


def agent_config(token: str) -> dict[str, object]:
    """Return the part of a config in which assisted-service's agent finds its token."""
    contents = f'[Service]\nEnvironment="PULL_SECRET_TOKEN={token}"\nExecStart=/usr/bin/true\n'
    return {"systemd": {"units": [{"name": "agent.service", "contents": contents}]}}


def _check_credentials(credentials: Credentials, api_request: ApiRequest, headers: Headers) -> None:
    if credentials.scheme is CredentialScheme.API_KEY:
        name = API_KEY_PARAMETER
        presented = api_request.query.get(name, "").encode()
    else:
        name = CREDENTIAL_FIELDS[credentials.scheme]
        (presented, *_) = headers.getRawHeaders(name.encode(), [b""])
    if not hmac.compare_digest(presented, credentials.secret.encode()):
        raise Unauthorized(f"{name} is missing or wrong", fields=(("WWW-Authenticate", "Bearer"),))


def _changed(response: ApiResponse, fault: Fault) -> ApiResponse:
    return attrs.evolve(
        response,
        status=response.status if fault.status is None else fault.status,
        body=response.body if fault.body is None else fault.body,
        modified=response.modified if fault.last_modified else None,
        fields=(*response.fields, *fault.fields),
    )


async def _break_before(request: Request, fault: Fault) -> None:
    """Break the connection before a response; return only if it is not broken."""
    transport = cast("ITCPTransport", request.channel.transport)
    if fault.broken is Break.RESET:
        transport.abortConnection()
    elif fault.broken is Break.GARBAGE:
        transport.write(b"\x00\xff not HTTP\r\n\r\n")
        transport.loseConnection()
    elif fault.broken is not Break.HANG:
        return
    await Deferred()  # canceled when the connection is lost


async def _break_within(request: Request, response: ApiResponse, fault: Fault) -> None:
    """Break the connection after half of the content; return only if it is not broken."""
    if fault.broken is None:
        return
    write_head(request, response)
    request.write(response.body[: len(response.body) // 2])
    if fault.broken is Break.HALF_BODY:
        request.channel.loseConnection()
    await Deferred()  # same
