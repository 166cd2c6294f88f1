from __future__ import annotations

from typing import TYPE_CHECKING, cast

import attrs
import pytest
from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IPushProducer, ITransport
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss
from zope.interface import implementer

from image_service.core.errors import ImageServiceError, UpstreamError, UpstreamTimeout
from image_service.server.assisted.body import read_body
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IProtocol
    from twisted.web.iweb import IResponse

LIMIT_BYTES = 10
SILENCE_SECONDS = 5.0


@implementer(ITransport, IPushProducer)
class _Transport(StringTransport):
    stopped = 0

    def stopProducing(self) -> None:
        self.stopped += 1


@attrs.define
class _Response:
    """A response whose body a test delivers."""

    transport: _Transport = attrs.field(factory=_Transport)
    protocol: IProtocol | None = None

    def deliverBody(self, protocol: IProtocol) -> None:
        self.protocol = protocol
        protocol.makeConnection(self.transport)

    def send(self, data: bytes) -> None:
        assert self.protocol is not None
        self.protocol.dataReceived(data)

    def end(self, reason: Exception) -> None:
        assert self.protocol is not None
        self.protocol.connectionLost(Failure(reason))


@attrs.frozen
class _Reading:
    clock: Clock = attrs.field(factory=Clock)
    response: _Response = attrs.field(factory=_Response)

    def start(self) -> Deferred[bytes]:
        response = cast("IResponse", self.response)
        return read_body(response, "it", LIMIT_BYTES, SILENCE_SECONDS, self.clock)

    def stops(self) -> int:
        return self.response.transport.stopped

    def assert_left_nothing(self, *, stopped: bool) -> None:
        assert self.clock.getDelayedCalls() == []
        assert self.stops() == stopped


@pytest.fixture
def reading() -> _Reading:
    return _Reading()


@ensure_deferred
async def test_chunks_are_joined(reading: _Reading) -> None:
    body = reading.start()
    for piece in (b"01234", b"", b"56789"):
        reading.response.send(piece)
    reading.response.end(ResponseDone())
    assert await body == b"0123456789"
    reading.assert_left_nothing(stopped=False)


@pytest.mark.parametrize("reason", [PotentialDataLoss(), ConnectionLost()])
@ensure_deferred
async def test_body_without_a_known_end_is_incomplete(reading: _Reading, reason: Exception) -> None:
    body = reading.start()
    reading.response.send(b"01234")
    reading.response.end(reason)
    with pytest.raises(UpstreamError, match="it ended early, after 5 bytes"):
        await body
    reading.assert_left_nothing(stopped=False)


@pytest.mark.parametrize("reason", [ResponseDone(), ConnectionLost()])
@ensure_deferred
async def test_body_above_the_limit_fails_when_its_connection_is_closed(
    reading: _Reading, reason: Exception
) -> None:
    body = reading.start()
    reading.response.send(b"0123456789")
    assert reading.stops() == 0
    reading.response.send(b"0")
    assert reading.stops() == 1
    reading.response.send(b"more that was on its way")
    assert not body.called
    reading.response.end(reason)
    with pytest.raises(UpstreamError, match="it is larger than 10 bytes"):
        await body
    reading.assert_left_nothing(stopped=True)


@ensure_deferred
async def test_each_byte_restarts_the_silence_timeout(reading: _Reading) -> None:
    body = reading.start()
    for _ in range(4):
        reading.clock.advance(SILENCE_SECONDS - 0.1)
        assert not body.called
        reading.response.send(b"0")
    reading.clock.advance(SILENCE_SECONDS)
    with pytest.raises(UpstreamTimeout, match="it stalled for 5 s"):
        await body
    reading.assert_left_nothing(stopped=True)
    reading.response.send(b"late")
    reading.response.end(ConnectionLost())


@ensure_deferred
async def test_silence_timeout_also_limits_the_close(
    reading: _Reading,
) -> None:
    body = reading.start()
    reading.response.send(b"0" * 11)
    reading.clock.advance(SILENCE_SECONDS)
    with pytest.raises(ImageServiceError):
        await body
    assert reading.clock.getDelayedCalls() == []


@ensure_deferred
async def test_canceled_read_closes_the_connection(reading: _Reading) -> None:
    body = reading.start()
    reading.response.send(b"0")
    body.cancel()
    with pytest.raises(CancelledError):
        await body
    reading.assert_left_nothing(stopped=True)
    reading.response.end(ConnectionLost())
