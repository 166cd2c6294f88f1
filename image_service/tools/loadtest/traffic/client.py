"""One client: reads images again and again, like a machine with virtual media, or like a download."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from image_service.tools.loadtest.traffic.connection import RequestFailed
from image_service.tools.loadtest.traffic.objectives import Timing
from image_service.tools.loadtest.traffic.profiles import ranges
from image_service.tools.loadtest.traffic.verification import (
    OK,
    PARTIAL_CONTENT,
    ContentCheck,
    MountCheck,
    VerificationFault,
    find_detail,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.tools.loadtest.traffic.connection import ClientConnection, ResponseReceiver
    from image_service.tools.loadtest.traffic.plan import ImageTarget
    from image_service.tools.loadtest.traffic.run_state import RunState
    from image_service.tools.loadtest.traffic.verification import ResponseHead

MAX_ERROR_BYTES = 4096
"""Of an error response, which are kept for its detail."""
BACKOFF_SECONDS = 0.5
"""After an error: immediate retries would turn an error of the server into an attack."""
DEFAULT_RETRY_SECONDS = 5.0
"""Where Retry-After is a date; assisted-image-service sends none."""
_RETRY_STATUSES = {429, 503}


class RequestRefused(Exception):
    """The server sent Retry-After; ``args[0]`` is the number of seconds."""


class VerificationError(Exception):
    """A response is wrong; ``args`` are the VerificationFault and, if known, the offset in the image."""


class VerifyingReceiver:
    """Verifies a response as it arrives.

    Args:
        check_head: returns what is wrong with the head.
        make_content_check: makes the check of the content; None: the content is not checked.
    """

    def __init__(
        self,
        status: int,
        check_head: Callable[[ResponseHead], VerificationFault | None],
        make_content_check: Callable[[], ContentCheck] | None = None,
    ) -> None:
        self._status = status
        self._check_head = check_head
        self._make_content_check = make_content_check
        self._content: ContentCheck | None = None
        self._refused = False
        self._error: bytearray | None = None  # the content of an error response

    def receive_head(self, head: ResponseHead) -> None:
        """Verify the head."""
        if head.status in _RETRY_STATUSES and "retry-after" in head.fields:
            self._refused = True
            return
        if head.status not in {self._status, OK}:
            self._error = bytearray()
            return
        fault = self._check_head(head)
        if fault:
            raise VerificationError(fault)
        self._content = self._make_content_check and self._make_content_check()

    def receive_content(self, data: bytes) -> None:
        """Compare content with earlier reads, or keep the content of an error."""
        if self._error is not None:
            self._error += data[: MAX_ERROR_BYTES - len(self._error)]
        elif self._content is not None:
            self._content.feed(data)

    def check_complete(self, head: ResponseHead) -> None:
        """Raise RequestRefused, RequestFailed or VerificationError if the complete response is one."""
        if self._refused:
            text = head.fields["retry-after"]
            raise RequestRefused(float(text) if text.isdecimal() else DEFAULT_RETRY_SECONDS)
        if self._error is not None:
            raise RequestFailed(f"status-{head.status}", find_detail(head, bytes(self._error)))
        if self._content is not None and self._content.differs_at is not None:
            raise VerificationError(VerificationFault.BYTES_DIFFER, self._content.differs_at)


class LoadClient:
    """Reads images, one after the other, until the run is over.

    Args:
        state: shared by all clients.
        number: of this client, from 0.
    """

    def __init__(self, state: RunState, number: int) -> None:
        self._state = state
        self._plan = state.plan
        self._number = number
        self._random = Random(number)  # noqa: S311 - the same reads in each run
        self._next_image = number
        self._connection: ClientConnection | None = None
        self._due: float | None = None
        self._started_at = 0.0
        self._is_first = False

    async def run(self) -> None:
        """Read until the run is over, or until canceled."""
        try:
            await self._state.sleep(self._state.start_delay(self._number))
            while not self._state.is_over:
                await self._do_next()
        finally:
            if self._connection is not None and self._connection.is_busy:
                # A slow download that has started counts, although the run ends before it does.
                if self._connection.first_byte_at is None:
                    self._state.record_unanswered()
                else:
                    self._record_first_byte(self._connection)
            self._disconnect()

    def check_timeout(self) -> None:
        """Fail the outstanding request if its response does not progress."""
        if self._connection is not None:
            self._connection.check_timeout(self._plan.timeout_seconds)

    async def _do_next(self) -> None:
        """Mount or download the next image, on a connection of its own."""
        image = self._next_image % len(self._plan.targets)
        self._next_image += self._plan.clients
        mount = MountCheck(image, self._state.blocks)
        try:
            if self._plan.profile.is_mount:
                await self._read_ranges(mount)
            else:
                make_receiver = lambda: VerifyingReceiver(  # noqa: E731 - a name would say no more
                    OK, mount.check_head, lambda: mount.check_content(0)
                )
                await self._request(mount, None, "GET", "", make_receiver)
        except VerificationError as error:
            self._record_fault(mount, error)
            await self._state.sleep(BACKOFF_SECONDS)
        self._disconnect()

    async def _read_ranges(self, mount: MountCheck) -> None:
        while mount.size is None and not self._state.is_over:
            await self._read_head(mount)
        for start, stop in ranges(self._plan.profile, mount.size or 0, self._random):
            if self._state.is_over:
                return
            await self._read_range(mount, start, stop)

    async def _read_head(self, mount: MountCheck) -> None:
        await self._request(mount, Timing.HEAD, "HEAD", "", lambda: VerifyingReceiver(OK, mount.check_head))

    async def _read_range(self, mount: MountCheck, start: int, stop: int) -> bool:
        """Read a range; return True if it was complete, whatever its bytes."""
        field = f"Range: bytes={start}-{stop - 1}\r\n"
        try:
            return await self._request(
                mount,
                Timing.RANGE,
                "GET",
                field,
                lambda: VerifyingReceiver(
                    PARTIAL_CONTENT,
                    lambda head: mount.check_range(head, start, stop),
                    lambda: mount.check_content(start),
                ),
            )
        except VerificationError as error:
            if error.args[0] is not VerificationFault.BYTES_DIFFER:
                raise
            self._record_fault(mount, error)
            return True

    async def _request(
        self,
        mount: MountCheck,
        timing: Timing | None,
        method: str,
        fields: str,
        make_receiver: Callable[[], VerifyingReceiver],
    ) -> bool:
        """Send a request once, and count its outcome; return True if its response was complete.

        After an error it is not repeated.
        """
        counters = self._state.counters
        try:
            await self._exchange(mount, timing, method, fields, make_receiver())
        except RequestRefused as refused:
            counters.refusals += 1
            await self._state.sleep(float(refused.args[0]))
        except RequestFailed as failed:
            self._disconnect()
            target = self._plan.targets[mount.image]
            counters.record_error(failed.kind, self._plan.redact(target, failed.detail))
            await self._state.sleep(BACKOFF_SECONDS)
        else:
            counters.requests += 1
            return True
        return False

    async def _exchange(
        self, mount: MountCheck, timing: Timing | None, method: str, fields: str, receiver: VerifyingReceiver
    ) -> None:
        due = await self._wait_until_due()
        target = self._plan.targets[mount.image]
        self._is_first = self._state.is_first_request(mount.image)
        request = self._state.encode_request(target, method, fields)
        connection, head = await self._send(target, request, receiver, due, head=method == "HEAD")
        if self._is_first:
            self._state.counters.record_server(head.fields.get("server"))
        receiver.check_complete(head)
        finished_at = self._state.clock()
        record = self._state.counters.record_duration
        record(Timing.REQUEST, finished_at - self._started_at)
        self._record_first_byte(connection)
        if timing is not None:
            record(timing, finished_at - self._started_at)

    def _record_first_byte(self, connection: ClientConnection) -> None:
        seconds = (connection.first_byte_at or self._state.clock()) - self._started_at
        record = self._state.counters.record_duration
        record(Timing.FIRST_BYTE, seconds)
        record(Timing.OWN_WAIT, connection.own_wait_seconds)
        if self._is_first:
            record(Timing.FIRST_REQUEST, seconds)

    async def _send(
        self,
        target: ImageTarget,
        request: bytes,
        receiver: ResponseReceiver,
        due: float | None,
        *,
        head: bool,
    ) -> tuple[ClientConnection, ResponseHead]:
        """Send a request, and again if a kept-alive connection was closed; the duration includes both."""
        started_at = due
        while True:
            connection = await self._connect(target)
            self._started_at = started_at = started_at or self._state.clock()
            try:
                return connection, await connection.send_request(request, receiver, head=head)
            except RequestFailed as failed:
                if not failed.stale:
                    raise
                self._state.counters.reconnects += 1

    async def _connect(self, target: ImageTarget) -> ClientConnection:
        if self._connection is None or not self._connection.usable:
            self._disconnect()
            started_at = self._state.clock()
            self._connection = await self._state.connect(target.origin, self._number)
            self._state.counters.record_duration(Timing.CONNECT, self._state.clock() - started_at)
        return self._connection

    async def _wait_until_due(self) -> float | None:
        """Wait until the next request is due, if there is a rate.

        Returns:
            when it was due, even if that has passed: the wait behind a stalled response is part of its
            duration. None: there is no rate.
        """
        rate = self._plan.requests_per_second
        if rate is None:
            return None
        now = self._state.clock()
        self._due = now if self._due is None else self._due + 1 / rate
        await self._state.sleep(self._due - now)
        return self._due

    def _record_fault(self, mount: MountCheck, error: VerificationError) -> None:
        fault, *offset = error.args
        label = self._plan.targets[mount.image].label
        where = f" at offset {offset[0]}" if offset else ""
        self._state.counters.record_fault(fault, f"image {mount.image + 1} ({label}){where}")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
