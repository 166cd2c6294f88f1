"""Checks that a URL gives the same bytes each time."""

from __future__ import annotations

import hashlib
import random
from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs

from image_service.common.command_line.progress_bar import ProgressBar
from image_service.core.errors import TransferFailed
from image_service.tools.doctor.outcomes import failed, passed, skipped
from image_service.tools.doctor.ranges import fetch_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.tools.doctor.outcomes import CheckOutcome
    from image_service.tools.doctor.response_checks import ServedFile
    from image_service.tools.doctor.web_client import WebReply

STABLE, COHERENT = "two-reads", "coherence"
COHERENCE_CHECKS = (STABLE, COHERENT)

_COUNT = 1000
_LENGTHS = (4 * 1024, 128 * 1024)  # bytes, as BMCs ask for
_PLACE_BYTES = 64 * 1024
_PLACES = 8
_WHOLE_SECONDS = 24 * 3600.0
_UNSTABLE = "let each version of the image have one ETag and one content, on all servers behind the URL"


def check_two_reads(file: ServedFile, size: int, areas: Sequence[tuple[int, int]]) -> CheckOutcome:
    """Return the outcome of reading places twice, each time over a new connection.

    Args:
        file: the file, whose single ranges work.
        size: of it, bytes.
        areas: offsets and lengths that must be among the places.
    """
    places = [*areas, *_choose_places(size)]
    try:
        first = [_read_place(file, size, offset, length) for offset, length in places]
        file.client.close()
        second = [_read_place(file, size, offset, length) for offset, length in places]
    except TransferFailed as error:
        return failed(STABLE, error.detail, _UNSTABLE)
    for (offset, _), one, other in zip(places, first, second, strict=True):
        if one != other:
            return failed(STABLE, f"the bytes at offset {offset} have changed between two reads", _UNSTABLE)
    return passed(STABLE, f"{len(places)} places and the validators are equal on two connections")


def check_beginning_twice(file: ServedFile) -> CheckOutcome:
    """Return the outcome of reading the beginning of a file without ranges once more."""
    file.client.close()
    try:
        again = file.client.request("GET", limit=len(file.beginning))
        _check_validators(file, again, "of the second read")
    except TransferFailed as error:
        return failed(STABLE, error.detail, _UNSTABLE)
    if again.body != file.beginning:
        return failed(STABLE, "the first bytes have changed between two reads", _UNSTABLE)
    return passed(STABLE, f"the first {len(file.beginning)} bytes and the validators are equal")


def _choose_places(size: int) -> list[tuple[int, int]]:
    length = min(_PLACE_BYTES, size)
    return [(index * (size - length) // (_PLACES - 1), length) for index in range(_PLACES)]


def _read_place(file: ServedFile, size: int, offset: int, length: int) -> bytes:
    reply = fetch_range(file.client, offset, offset + length - 1, size)
    _check_validators(file, reply, f"at offset {offset}")
    return reply.body


def _check_validators(file: ServedFile, reply: WebReply, where: str) -> None:
    """Raise TransferFailed if ETag or Last-Modified are other ones; a 206 may lack the latter."""
    for name, one, other in zip(("ETag", "Last-Modified"), file.validators, reply.validators, strict=True):
        if other not in {one, None}:
            raise TransferFailed(f"the {name} {where} differs from that of HEAD")


@attrs.define
class _SampledRange:
    """A range, and the digest of its bytes in the whole file."""

    offset: int
    length: int
    digest: hashlib._Hash = attrs.field(factory=hashlib.sha256)

    def update(self, position: int, chunk: bytes) -> None:
        """Take the bytes of a chunk of the whole file, at `position`, that belong to the range."""
        start = max(0, self.offset - position)
        end = self.offset + self.length - position
        if end > 0 and start < len(chunk):
            self.digest.update(chunk[start:end])


def check_coherence(file: ServedFile, size: int) -> CheckOutcome:
    """Compare a thousand random ranges with a whole read, whose progress a terminal shows.

    Args:
        file: the file, whose single ranges work.
        size: of it, bytes.
    """
    samples = _choose_samples(size)
    try:
        _digest_whole(file, size, samples)
        for sample in samples:
            content = _read_place(file, size, sample.offset, sample.length)
            if hashlib.sha256(content).digest() != sample.digest.digest():
                detail = (
                    f"bytes {sample.offset}-{sample.offset + sample.length - 1} differ from the whole read"
                )
                return failed(COHERENT, detail, _UNSTABLE)
    except TransferFailed as error:
        return failed(COHERENT, error.detail, _UNSTABLE)
    return passed(COHERENT, f"{len(samples)} random ranges are equal to the whole read of {size} bytes")


def _digest_whole(file: ServedFile, size: int, samples: Sequence[_SampledRange]) -> None:
    """Read the whole file into the samples' digests; raise TransferFailed if it ends too soon."""
    position = 0
    with ProgressBar(size) as progress:

        def take(chunk: bytes) -> None:
            nonlocal position
            for sample in samples:
                sample.update(position, chunk)
            position += len(chunk)
            progress.advance(len(chunk))

        whole = file.client.request("GET", limit=size + 1, limit_seconds=_WHOLE_SECONDS, sink=take)
    if whole.status != HTTPStatus.OK or position != size or not whole.is_whole:
        raise TransferFailed(f"the whole read ended after {position} of {size} bytes")


def skip_coherence(reason: str) -> CheckOutcome:
    """Return the outcome if ranges are not compared with a whole read."""
    return skipped(COHERENT, reason)


def _choose_samples(size: int) -> list[_SampledRange]:
    samples = []
    for _ in range(_COUNT):
        length = min(size, random.randint(*_LENGTHS))  # noqa: S311 - no secret
        samples.append(_SampledRange(random.randint(0, size - length), length))  # noqa: S311 - same
    return samples
