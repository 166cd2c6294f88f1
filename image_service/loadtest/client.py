"""One client: what a machine, or somebody who downloads, does again and again."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from image_service.loadtest.connection import Failed
from image_service.loadtest.objectives import Timing
from image_service.loadtest.profiles import ranges
from image_service.loadtest.verification import OK, PARTIAL_CONTENT, Content, Fault, Mount

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.loadtest.connection import Connection
    from image_service.loadtest.course import Course
    from image_service.loadtest.targets import Target
    from image_service.loadtest.verification import Answer

BACKOFF_SECONDS = 0.5
"""After a failure: who tries again at once makes a fault of the server an attack."""
REFUSED_SECONDS = 5.0
"""Where a date says when to come again: assisted-image-service sends none."""
_RETRIED = {429, 503}


class Refused(Exception):
    """The server asks for another time; ``args[0]`` are seconds."""


class Wrong(Exception):
    """A verification failed; ``args[0]`` is the Fault."""


class Receiver:
    """Judges an answer while it comes.

    Args:
        status: that it has to have.
        judge: says what is wrong with its head.
        content: gives what its content is compared with; None: nothing.
    """

    def __init__(
        self,
        status: int,
        judge: Callable[[Answer], Fault | None],
        content: Callable[[], Content] | None = None,
    ) -> None:
        self._status = status
        self._judge = judge
        self._make_content = content
        self._content: Content | None = None
        self._refused = False

    def begin(self, answer: Answer) -> None:
        """Judge its head."""
        if answer.status in _RETRIED and "retry-after" in answer.fields:
            self._refused = True
            return
        if answer.status not in {self._status, OK}:
            raise Failed(f"status-{answer.status}")
        fault = self._judge(answer)
        if fault:
            raise Wrong(fault)
        self._content = self._make_content and self._make_content()

    def take(self, data: bytes) -> None:
        """Compare content."""
        if self._content is not None:
            self._content.feed(data)

    def end(self, answer: Answer) -> None:
        """Judge the whole."""
        if self._refused:
            raise Refused(_retry_after(answer))
        if self._content is not None and self._content.differs_at is not None:
            raise Wrong(Fault.BYTES_DIFFER, self._content.differs_at)


class Client:
    """Reads images, one after the other, until the course is over.

    Args:
        course: what all clients share.
        number: its own, from 0.
    """

    def __init__(self, course: Course, number: int) -> None:
        self._course = course
        self._plan = course.plan
        self._number = number
        self._random = Random(number)  # noqa: S311 - the same reads in each run
        self._visits = number
        self._connection: Connection | None = None
        self._due: float | None = None
        self._begun = 0.0
        self._is_first = False

    async def run(self) -> None:
        """Read until the course is over, or this is cancelled."""
        try:
            await self._course.sleep(self._course.head_start(self._number))
            while not self._course.is_over:
                await self._visit()
        finally:
            if self._connection is not None and self._connection.is_under_way:
                self._tell_under_way(self._connection.first_byte_at)
            self._leave()

    def expire(self) -> None:
        """Give up an answer that does not go on."""
        if self._connection is not None:
            self._connection.expire(self._plan.timeout_seconds)

    async def _visit(self) -> None:
        """Mount one image on a connection of its own, or download it."""
        image = self._visits % len(self._plan.targets)
        self._visits += self._plan.clients
        mount = Mount(image, self._course.blocks)
        try:
            if self._plan.profile.is_mount:
                await self._read_ranges(mount)
            else:
                await self._download(mount)
        except Wrong as wrong:
            self._tell(mount, wrong)
            await self._course.sleep(BACKOFF_SECONDS)
        self._leave()

    async def _read_ranges(self, mount: Mount) -> None:
        while mount.size is None and not self._course.is_over:
            await self._attempt(mount, Timing.HEAD, "HEAD", "", Receiver(OK, mount.check_head))
        for start, stop in ranges(self._plan.profile, mount.size or 0, self._random):
            if self._course.is_over:
                return
            await self._read(mount, start, stop)

    async def _read(self, mount: Mount, start: int, stop: int) -> None:
        """Read a range; one that cannot be had is left out, as one in doubt would be retried by a BMC."""
        receiver = Receiver(
            PARTIAL_CONTENT,
            lambda answer: mount.check_range(answer, start, stop),
            lambda: mount.content(start),
        )
        field = f"Range: bytes={start}-{stop - 1}\r\n"
        try:
            await self._attempt(mount, Timing.RANGE, "GET", field, receiver)
        except Wrong as wrong:
            if wrong.args[0] is not Fault.BYTES_DIFFER:
                raise
            self._tell(mount, wrong)

    async def _download(self, mount: Mount) -> None:
        receiver = Receiver(OK, mount.check_head, lambda: mount.content(0))
        await self._attempt(mount, None, "GET", "", receiver)

    async def _attempt(
        self, mount: Mount, timing: Timing | None, method: str, fields: str, receiver: Receiver
    ) -> None:
        """Send a request once, and count what comes of it."""
        tally = self._course.tally
        try:
            await self._exchange(mount, timing, method, fields, receiver)
        except Refused as refused:
            tally.refusals += 1
            await self._course.sleep(float(refused.args[0]))
        except Failed as failed:
            self._leave()
            tally.errors[failed.kind] += 1
            await self._course.sleep(BACKOFF_SECONDS)
        else:
            tally.requests += 1

    async def _exchange(
        self, mount: Mount, timing: Timing | None, method: str, fields: str, receiver: Receiver
    ) -> None:
        due = await self._wait_for_turn()
        target = self._plan.targets[mount.image]
        self._is_first = self._course.is_first(mount.image)
        request = self._course.request(target, method, fields)
        connection, answer = await self._ask(target, request, receiver, due, head=method == "HEAD")
        receiver.end(answer)
        ended = self._course.clock()
        record = self._course.tally.record
        record(Timing.REQUEST, ended - self._begun)
        self._record_first_byte(connection.first_byte_at or ended)
        if timing is not None:
            record(timing, ended - self._begun)

    def _record_first_byte(self, at: float) -> None:
        self._course.tally.record(Timing.FIRST_BYTE, at - self._begun)
        if self._is_first:
            self._course.tally.record(Timing.FIRST_REQUEST, at - self._begun)

    def _tell_under_way(self, first_byte_at: float | None) -> None:
        """Count a request whose answer nobody waits for any more: a slow download has begun all the same."""
        if first_byte_at is None:
            self._course.tell_unanswered()
        else:
            self._record_first_byte(first_byte_at)

    async def _ask(
        self, target: Target, request: bytes, receiver: Receiver, due: float | None, *, head: bool
    ) -> tuple[Connection, Answer]:
        """Send a request, and again where a kept-alive connection ends unanswered; its time goes on."""
        begun = due
        while True:
            connection = await self._connected(target)
            self._begun = begun = begun or self._course.clock()
            try:
                return connection, await connection.ask(request, receiver, head=head)
            except Failed as failed:
                if not failed.stale:
                    raise
                self._course.tally.reconnects += 1

    async def _connected(self, target: Target) -> Connection:
        if self._connection is None or not self._connection.usable:
            self._leave()
            begun = self._course.clock()
            self._connection = await self._course.connect(target.origin, self._number)
            self._course.tally.record(Timing.CONNECT, self._course.clock() - begun)
        return self._connection

    async def _wait_for_turn(self) -> float | None:
        """Wait until the next request is due, where there is a rate.

        Returns:
            when it was due, however late it is now: a server that stalls delays the requests behind, and
            these waits are its own. None: there is no rate.
        """
        rate = self._plan.requests_per_second
        if rate is None:
            return None
        now = self._course.clock()
        self._due = now if self._due is None else self._due + 1 / rate
        await self._course.sleep(self._due - now)
        return self._due

    def _tell(self, mount: Mount, wrong: Wrong) -> None:
        fault, *where = wrong.args
        label = self._plan.targets[mount.image].label
        at = f" at offset {where[0]}" if where else ""
        self._course.tally.fault(fault, f"image {mount.image + 1} ({label}){at}")

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _retry_after(answer: Answer) -> float:
    text = answer.fields["retry-after"]
    return float(text) if text.isdecimal() else REFUSED_SECONDS
