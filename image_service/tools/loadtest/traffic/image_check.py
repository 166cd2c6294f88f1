"""Checks whole images: compares each with the server's SHA-256 and with all earlier reads."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.internet.task import deferLater

from image_service.tools.loadtest.traffic.client import RequestRefused, VerificationError, VerifyingReceiver
from image_service.tools.loadtest.traffic.connection import RequestFailed
from image_service.tools.loadtest.traffic.verification import (
    OK,
    MountCheck,
    VerificationFault,
    parse_checksum,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.tools.loadtest.traffic.connection import ClientConnection
    from image_service.tools.loadtest.traffic.dialer import Dialer
    from image_service.tools.loadtest.traffic.plan import ImageTarget
    from image_service.tools.loadtest.traffic.run_state import RunState
    from image_service.tools.loadtest.traffic.verification import ResponseHead

R = TypeVar("R", bound=VerifyingReceiver)

ATTEMPTS = 5
MAX_WAIT_SECONDS = 10.0
_MAX_LINE_BYTES = 1024


@attrs.frozen
class DigestCheck:
    """The result of one check.

    Args:
        image: its label.
        outcome: ``equal``; ``not-offered`` if the server has no digest; or the verification fault, or the
            error for which the image could not be read.
        sha256: of the bytes read, hexadecimal; empty if the image could not be read.
        detail: the server's own words for that; empty if it sent none.
    """

    image: str
    outcome: str
    sha256: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        """The outcome for people; without a digest, only why the image could not be read."""
        if self.sha256:
            return f"SHA-256 {self.outcome}"
        return f"{self.outcome}: {self.detail}" if self.detail else self.outcome


class _HashingReceiver(VerifyingReceiver):
    """Computes the digest of an image too."""

    def __init__(self, mount: MountCheck) -> None:
        super().__init__(OK, mount.check_head, lambda: mount.check_content(0))
        self.digest = sha256()

    def receive_content(self, data: bytes) -> None:
        super().receive_content(data)
        self.digest.update(data)


class _LineReceiver(VerifyingReceiver):
    """Receives one line of text; a long response is an image, so there is no digest."""

    def __init__(self) -> None:
        super().__init__(OK, self._check_length)
        self.text = b""

    def receive_content(self, data: bytes) -> None:
        self.text += data

    @staticmethod
    def _check_length(head: ResponseHead) -> VerificationFault | None:
        if head.length is None or head.length > _MAX_LINE_BYTES:
            raise RequestFailed("not-offered")
        return None


class ImageChecker:
    """Checks images after the clients have stopped."""

    def __init__(self, state: RunState, dialer: Dialer, reactor: IReactorTime) -> None:
        self._state = state
        self._plan = state.plan
        self._dialer = dialer
        self._reactor = reactor
        self._connection: ClientConnection | None = None

    def check_timeout(self) -> None:
        """Fail the outstanding request if its response does not progress."""
        if self._connection is not None:
            self._connection.check_timeout(self._plan.timeout_seconds)

    async def check_image(self, image: int) -> DigestCheck:
        """Read image number `image` and its digest; a fault is counted too."""
        target = self._plan.targets[image]
        mount = MountCheck(image, self._state.blocks)
        try:
            receiver = await self._read(target, target.path, lambda: _HashingReceiver(mount))
        except VerificationError as error:
            return self._fault(image, error.args[0])
        except RequestFailed as failed:
            return DigestCheck(target.label, failed.kind, detail=self._plan.redact(target, failed.detail))
        digest = receiver.digest.hexdigest()
        try:
            line = await self._read(target, target.digest_path, _LineReceiver)
        except RequestFailed:
            return DigestCheck(target.label, "not-offered", digest)
        if parse_checksum(line.text) != digest:
            return self._fault(image, VerificationFault.DIGEST_DIFFERS, digest)
        return DigestCheck(target.label, "equal", digest)

    def _fault(self, image: int, fault: VerificationFault, digest: str = "") -> DigestCheck:
        label = self._plan.targets[image].label
        self._state.counters.record_fault(fault, f"image {image + 1} ({label}), read whole")
        return DigestCheck(label, fault, digest)

    async def _read(self, target: ImageTarget, path: str, make_receiver: Callable[[], R]) -> R:
        """Read the response at a path; retries while the server sends Retry-After."""
        request = self._state.encode_request(attrs.evolve(target, path=path), "GET", "")
        for _ in range(ATTEMPTS):
            self._connection = connection = await self._dialer.connect(target.origin, 0)
            receiver = make_receiver()
            try:
                receiver.check_complete(await connection.send_request(request, receiver))
            except RequestRefused as refused:
                await deferLater(self._reactor, min(refused.args[0], MAX_WAIT_SECONDS))
            else:
                return receiver
            finally:
                connection.close()
        raise RequestFailed("refused")
