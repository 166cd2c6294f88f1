"""Fetching a file, in a thread: what was there before a break is not fetched again.

Parts are put together only where they are of one representation (RFC 9110 section 14.2). The request says so
by a precondition, and the answer is held to it all the same, by ``Content-Range`` and entity tag: stores
that speak S3 ignore ``If-Range`` and answer 206 to a stale one.
"""

from __future__ import annotations

import re
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.catalog.download.partial_file import PartialFile, Representation
from image_service.errors import Unavailable
from image_service.http.dates import parse_http_date

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from email.message import Message
    from pathlib import Path

    from image_service.catalog.download.http_get import Answer, HttpGet
    from image_service.concurrency.interruption import Interruption

    Progress: TypeAlias = Callable[[int, int | None], None]

# opaque-tag of RFC 9110 section 8.8.3 in ASCII; a weak tag (W/) is no validator for parts
_STRONG_ETAG = re.compile(r'"[!#-~]*"')
# range-resp, unsatisfied-range of RFC 9110 section 14.4
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_UNSATISFIED = re.compile(r"bytes \*/([0-9]{1,18})")
_STRONG_DATE = timedelta(seconds=1)  # RFC 9110 section 8.8.2.2


@attrs.frozen
class Downloader:
    """Fetches files.

    Args:
        http: asks their origins.
    """

    http: HttpGet

    def fetch(
        self, url: str, partial: Path, interruption: Interruption, progress: Progress = lambda *_: None
    ) -> None:
        """Make a file complete that may be there in part.

        Args:
            url: ``http`` or ``https``.
            partial: the file. When this raises, what is there of it is gone on with by the next call.
            interruption: ends it from another thread.
            progress: is told the bytes that are there, and those of the whole where the origin says so, at
                the beginning and with each block. What it raises ends this.

        Raises:
            Unavailable: not fetched, or not whole; says why without telling the URL, and when to ask again
                if the origin says so.
            OSError: the file cannot be written.
            Interrupted: the service stops.
        """
        interruption.raise_if_interrupted()
        with PartialFile(partial, url) as file:
            for _ in range(2):  # the second time from the beginning
                if file.complete:
                    progress(file.length, file.length)
                    return
                with self.http.ask(url, _fields(file), interruption) as answer:
                    if _begins(answer, file) or _continues(answer, file):
                        _receive(answer, file, progress)
                    elif _was_complete(answer, file):
                        file.end()
                    else:
                        file.begin(Representation())
        if not file.complete:
            raise Unavailable("cannot fetch: the answers do not fit what was asked for")


def _fields(file: PartialFile) -> Mapping[str, str]:
    """Ask for what is missing of the representation that there is a part of."""
    known = file.representation
    if not file.length or not (known.etag or known.last_modified):
        return {}
    precondition = (
        {"If-Match": known.etag} if known.etag else {"If-Unmodified-Since": str(known.last_modified)}
    )
    return {"Range": f"bytes={file.length}-", **precondition}


def _begins(answer: Answer, file: PartialFile) -> bool:
    """Whether the answer is the whole, which the file is made ready for."""
    if answer.status != HTTPStatus.OK:
        return False
    file.begin(_representation(answer.fields, answer.length))
    return True


def _continues(answer: Answer, file: PartialFile) -> bool:
    """Whether the answer goes on where the file ends, in the same representation."""
    described = _RANGE.fullmatch(answer.fields.get("Content-Range", ""))
    if answer.status != HTTPStatus.PARTIAL_CONTENT or not described or not file.length:
        return False
    first, last = int(described[1]), int(described[2])
    total = file.representation.total if described[3] == "*" else int(described[3])
    fits = first == file.length and first <= last and answer.length in {None, last - first + 1}
    if total is None or last >= total or not fits or not _is_same(answer.fields, total, file.representation):
        return False
    file.representation = attrs.evolve(file.representation, total=total)
    return True


def _was_complete(answer: Answer, file: PartialFile) -> bool:
    """Whether there is nothing behind what the file has, because that is all."""
    unsatisfied = _UNSATISFIED.fullmatch(answer.fields.get("Content-Range", ""))
    if answer.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not unsatisfied:
        return False
    tag = answer.fields.get("ETag", file.representation.etag)  # which an error need not have
    return 0 < file.length == int(unsatisfied[1]) and tag == file.representation.etag


def _is_same(fields: Message, total: int, known: Representation) -> bool:
    if known.total not in {None, total}:
        return False
    if known.etag is not None:
        return bool(fields.get("ETag") == known.etag)
    return fields.get("Last-Modified", known.last_modified) == known.last_modified


def _receive(answer: Answer, file: PartialFile, progress: Progress) -> None:
    total = file.representation.total
    progress(file.length, total)
    for block in answer.blocks():
        if total is not None and file.length + len(block) > total:
            file.begin(Representation())  # so who knows what it was
            raise Unavailable(f"cannot fetch: the origin sent more than the {total} bytes that it promised")
        file.append(block)
        progress(file.length, total)
    if total not in {None, file.length}:
        raise Unavailable(f"cannot fetch: the origin sent up to {file.length} of {total} bytes")
    file.end()


def _representation(fields: Message, total: int | None) -> Representation:
    """What is said of the whole, with the validators that can be relied on."""
    tag, modified = fields.get("ETag", ""), fields.get("Last-Modified", "")
    return Representation(
        etag=tag if _STRONG_ETAG.fullmatch(tag) else None,
        last_modified=modified if _is_strong(modified, fields.get("Date", "")) else None,
        total=total,
    )


def _is_strong(modified: str, date: str) -> bool:
    """Whether the file cannot have changed twice within the second that the date has."""
    then, now = parse_http_date(modified), parse_http_date(date)
    return then is not None and now is not None and now - then >= _STRONG_DATE
