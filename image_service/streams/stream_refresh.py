"""Asking for stream metadata, in a thread: nothing is transferred where nothing has changed."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from image_service.coreos.stream_metadata import MAX_DOCUMENT_BYTES, parse_stream, select_releases
from image_service.errors import StreamMetadataInvalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from email.message import Message

    from image_service.concurrency.interruption import Interruption
    from image_service.settings.stream_sources import StreamSource
    from image_service.streams.stream_state import StreamState


class Answer(Protocol):
    """What an origin says."""

    @property
    def status(self) -> int:
        """Status code."""

    @property
    def fields(self) -> Message:
        """Header fields."""

    def blocks(self) -> Iterator[bytes]:
        """The body as it comes."""


class Http(Protocol):
    """Asks origins, as ``HttpGet`` does."""

    def ask(
        self, url: str, fields: Mapping[str, str], interruption: Interruption
    ) -> AbstractContextManager[Answer]:
        """Send a GET request."""


def refresh(source: StreamSource, known: StreamState, http: Http, interruption: Interruption) -> StreamState:
    """Ask a stream what is new.

    Args:
        source: the stream.
        known: what is known of it.
        http: asks.
        interruption: ends it from another thread.

    Returns:
        what is known then.

    Raises:
        Unavailable: there is no answer; says why.
        StreamMetadataInvalid: the answer is no metadata, or offers nothing; says where.
        Interrupted: the service stops.
    """
    fields = known.conditions(source)
    with http.ask(source.url, fields, interruption) as answer:
        if answer.status == HTTPStatus.NOT_MODIFIED and fields:
            return known
        text = read_body(answer, MAX_DOCUMENT_BYTES)
        validators = (answer.fields.get("ETag"), answer.fields.get("Last-Modified"))
    document = parse_stream(text)
    if not select_releases(document, source.architectures):
        raise StreamMetadataInvalid(
            f"$.architectures: has no metal ISO for {', '.join(source.architectures)}"
        )
    return known.told(source, document, validators)


def read_body(answer: Answer, max_bytes: int) -> bytes:
    """Read an answer of 200 to its end.

    Args:
        answer: the answer.
        max_bytes: more is not taken.

    Returns:
        the body.

    Raises:
        Unavailable: it is another answer, or too long.
    """
    if answer.status != HTTPStatus.OK:
        raise Unavailable(f"cannot fetch: the answer is {answer.status}, not 200")
    body = bytearray()
    for block in answer.blocks():
        body += block
        if len(body) > max_bytes:
            raise Unavailable(f"cannot fetch: the answer has more than {max_bytes} bytes")
    return bytes(body)
