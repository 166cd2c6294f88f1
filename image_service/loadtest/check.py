"""Images read whole: each is compared with its SHA-256 as the server tells it, and with all earlier reads."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.internet.task import deferLater

from image_service.loadtest.client import Receiver, Refused, Wrong
from image_service.loadtest.connection import Failed
from image_service.loadtest.verification import OK, Fault, Mount, parse_checksum

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.loadtest.connection import Connection
    from image_service.loadtest.course import Course
    from image_service.loadtest.dialer import Dialer
    from image_service.loadtest.targets import Target
    from image_service.loadtest.verification import Answer

R = TypeVar("R", bound=Receiver)

ATTEMPTS = 5
LONGEST_WAIT_SECONDS = 10.0
_LONGEST_LINE = 1024


@attrs.frozen
class DigestCheck:
    """What came of it.

    Args:
        image: its label.
        outcome: ``equal``; ``not-offered``, where the server tells no digest; or the fault, or the error for
            which the image could not be read.
        sha256: of what was read, in hexadecimal digits; empty: it could not be read.
    """

    image: str
    outcome: str
    sha256: str = ""

    @property
    def told(self) -> str:
        """What is shown of it: without a digest, only why the image could not be read."""
        return f"SHA-256 {self.outcome}" if self.sha256 else self.outcome


class _Hashed(Receiver):
    """Takes the digest of an image as well."""

    def __init__(self, mount: Mount) -> None:
        super().__init__(OK, mount.check_head, lambda: mount.content(0))
        self.digest = sha256()

    def take(self, data: bytes) -> None:
        super().take(data)
        self.digest.update(data)


class _Line(Receiver):
    """Takes a line of text, of which an image is none."""

    def __init__(self) -> None:
        super().__init__(OK, _judge_line)
        self.text = b""

    def take(self, data: bytes) -> None:
        self.text += data


def _judge_line(answer: Answer) -> Fault | None:
    if answer.length is None or answer.length > _LONGEST_LINE:
        raise Failed("not-offered")
    return None


class Checker:
    """Checks images when the clients have left.

    Args:
        course: which has come to its end.
        dialer: makes connections.
        reactor: times waits.
    """

    def __init__(self, course: Course, dialer: Dialer, reactor: IReactorTime) -> None:
        self._course = course
        self._plan = course.plan
        self._dialer = dialer
        self._reactor = reactor
        self._connection: Connection | None = None

    def expire(self) -> None:
        """Give up an answer that does not go on."""
        if self._connection is not None:
            self._connection.expire(self._plan.timeout_seconds)

    async def check(self, image: int) -> DigestCheck:
        """Read an image and its digest.

        Args:
            image: its number.

        Returns:
            what came of it; a fault is counted too.
        """
        target = self._plan.targets[image]
        mount = Mount(image, self._course.blocks)
        try:
            digest = (await self._read(target, target.path, lambda: _Hashed(mount))).digest.hexdigest()
        except Wrong as wrong:
            fault: Fault = wrong.args[0]
            return self._tell(image, fault)
        except Failed as failed:
            return DigestCheck(target.label, failed.kind)
        try:
            line = await self._read(target, target.digest_path, _Line)
        except Failed:
            return DigestCheck(target.label, "not-offered", digest)
        if parse_checksum(line.text) != digest:
            return self._tell(image, Fault.DIGEST_DIFFERS, digest)
        return DigestCheck(target.label, "equal", digest)

    def _tell(self, image: int, fault: Fault, digest: str = "") -> DigestCheck:
        label = self._plan.targets[image].label
        self._course.tally.fault(fault, f"image {image + 1} ({label}), read whole")
        return DigestCheck(label, fault, digest)

    async def _read(self, target: Target, path: str, make: Callable[[], R]) -> R:
        """Read what is at a path, as often as the server asks for another time."""
        request = self._course.request(attrs.evolve(target, path=path), "GET", "")
        for _ in range(ATTEMPTS):
            self._connection = connection = await self._dialer.connect(target.origin, 0)
            receiver = make()
            try:
                receiver.end(await connection.ask(request, receiver))
            except Refused as refused:
                await deferLater(self._reactor, min(refused.args[0], LONGEST_WAIT_SECONDS))
            else:
                return receiver
            finally:
                connection.close()
        raise Failed("refused")
