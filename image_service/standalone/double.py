"""The test double: the stand-in counts what it is asked, and misbehaves when it is told to.

    standalone.calls[infra_env_id, Call.IGNITION]                              # how often
    standalone.faults[Call.IGNITION] = Fault(sign_token=True, last_modified=False)
    standalone.faults |= dict.fromkeys(Call, Fault(status=503, fields=(("Retry-After", "7"),)))
    standalone.faults.clear()

Both concern the HTTPS listener that image-service itself asks, not the one for people.
"""

from __future__ import annotations

import enum
import hmac
import re
from typing import TYPE_CHECKING, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from image_service.assisted.client import API_KEY_PARAMETER, CREDENTIAL_FIELDS
from image_service.errors import NotFound, Unauthorized
from image_service.images.reference import Credentials, CredentialScheme
from image_service.management.resource import ApiResource, write_head
from image_service.standalone.content import discovery_config
from image_service.standalone.tokens import TokenSigner

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from twisted.internet.interfaces import IReactorTime, ITCPTransport
    from twisted.web.http_headers import Headers
    from twisted.web.server import Request

    from image_service.management.authentication import Guard
    from image_service.standalone.api import Api, ApiAnswer, ApiRequest


class Call(enum.Enum):
    """The questions that image-service asks, by what stands behind the infra-env's id."""

    INFRA_ENV = ""
    IGNITION = "/downloads/files"
    RAMDISK = "/downloads/minimal-initrd"


class Break(enum.Enum):
    """How a connection comes to a bad end."""

    RESET = "reset"  # instead of an answer
    GARBAGE = "garbage"  # instead of HTTP
    HANG = "hang"  # nothing at all
    HALF_BODY = "half body"  # then closed
    STALL = "stall"  # half the body, then nothing


@attrs.frozen
class Fault:
    """What is to be different about the answers to one kind of call.

    Args:
        delay_seconds: before the answer.
        status: instead of 200; None: as it is.
        fields: further header fields, such as ``Set-Cookie``, ``Location`` or ``WWW-Authenticate``.
        body: instead of the content; None: as it is.
        broken: how the connection ends; None: well.
        sign_token: put a fresh ES256 token into each Ignition config, as local authentication does.
        last_modified: whether there is a Last-Modified.
        credentials: that must be presented, else 401; None: anybody may ask.
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


class DownloadsResource(ApiResource):
    """The listener that image-service asks: three reads, counted, and bent as told.

    Who knows the id of an infra-env gets what image-service would lay into an image for the asking, and
    nothing else: no list, no change. So this listener needs no secret beside its certificate.

    Args:
        guard: decides by the head alone.
        api: answers.
        calls: counts by infra-env and call.
        faults: what is to be different.
        clock: waits.
    """

    def __init__(
        self,
        guard: Guard,
        api: Api,
        calls: Counter[tuple[str, Call]],
        faults: Mapping[Call, Fault],
        clock: IReactorTime,
    ) -> None:
        super().__init__(guard, api.answer)
        self._api = api
        self._calls = calls
        self._faults = faults
        self._clock = clock
        self._signer = TokenSigner()

    async def _answer(self, request: Request, asked: ApiRequest) -> ApiAnswer:
        match = _CALL.fullmatch(asked.path)
        if match is None or asked.method != "GET":
            raise NotFound("only the downloads of an infra-env are here")
        infra_env_id, call = match["infra_env_id"], Call(match["call"])
        self._calls[infra_env_id, call] += 1
        fault = self._faults.get(call, Fault())
        if fault.delay_seconds:
            await deferLater(self._clock, fault.delay_seconds)
        if fault.credentials is not None:
            require(fault.credentials, asked, request.requestHeaders)
        await _break_before(request, fault)
        answer = await super()._answer(request, asked)
        if fault.sign_token and call is Call.IGNITION:
            answer = await self._sign(infra_env_id, answer)
        answer = _bend(answer, fault)
        await _break_within(request, answer, fault)
        return answer

    async def _sign(self, infra_env_id: str, answer: ApiAnswer) -> ApiAnswer:
        infra_env = await self._api.find(infra_env_id)
        return attrs.evolve(answer, body=discovery_config(infra_env, self._signer.sign(infra_env_id)))


def require(credentials: Credentials, asked: ApiRequest, headers: Headers) -> None:
    """Refuse a request that does not carry these credentials.

    Args:
        credentials: where they must stand, and what they must be.
        asked: may carry an api key in its query.
        headers: may carry a token.

    Raises:
        Unauthorized: other credentials, or none.
    """
    if credentials.scheme is CredentialScheme.API_KEY:
        name = API_KEY_PARAMETER
        presented = asked.query.get(name, "").encode()
    else:
        name = CREDENTIAL_FIELDS[credentials.scheme]
        (presented, *_) = headers.getRawHeaders(name.encode(), [b""])
    if not hmac.compare_digest(presented, credentials.secret.encode()):
        raise Unauthorized(f"{name} is missing or wrong", fields=(("WWW-Authenticate", "Bearer"),))


def _bend(answer: ApiAnswer, fault: Fault) -> ApiAnswer:
    return attrs.evolve(
        answer,
        status=answer.status if fault.status is None else fault.status,
        body=answer.body if fault.body is None else fault.body,
        modified=answer.modified if fault.last_modified else None,
        fields=(*answer.fields, *fault.fields),
    )


async def _break_before(request: Request, fault: Fault) -> None:
    """End the connection, or keep it waiting, before anything is answered; returns only if it is to go on."""
    transport = cast("ITCPTransport", request.channel.transport)
    if fault.broken is Break.RESET:
        transport.abortConnection()
    elif fault.broken is Break.GARBAGE:
        transport.write(b"\x00\xff not HTTP\r\n\r\n")
        transport.loseConnection()
    elif fault.broken is not Break.HANG:
        return
    await Deferred()  # until the connection is gone, which cancels this


async def _break_within(request: Request, answer: ApiAnswer, fault: Fault) -> None:
    """End the connection, or keep it waiting, after half the content; returns only if it is to go on."""
    if fault.broken is None:
        return
    write_head(request, answer)
    request.write(answer.body[: len(answer.body) // 2])
    if fault.broken is Break.HALF_BODY:
        request.channel.loseConnection()
    await Deferred()  # same
