"""Fetches stream metadata, in a thread; an unchanged document is not transferred again."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.coreos.stream_metadata import MAX_DOCUMENT_BYTES, parse_stream, select_releases
from image_service.errors import StreamMetadataInvalid

if TYPE_CHECKING:
    from image_service.catalog.download.origin_client import OriginClient
    from image_service.concurrency.interruption import Interruption
    from image_service.settings.stream_sources import StreamSource
    from image_service.streams.stream_state import StreamState


def refresh_stream(
    source: StreamSource, state: StreamState, client: OriginClient, interruption: Interruption
) -> StreamState:
    """Return the state of a stream after fetching its document.

    Raises:
        Unavailable: it cannot be fetched.
        StreamMetadataInvalid: it is no stream metadata, or has no ISO for any of the architectures.
        Interrupted: the service stops.
    """
    preconditions = state.preconditions(source)
    with client.fetch(source.url, preconditions, interruption) as response:
        if response.status == HTTPStatus.NOT_MODIFIED and preconditions:
            return state
        text = response.read_all(MAX_DOCUMENT_BYTES)
        validators = (response.headers.get("ETag"), response.headers.get("Last-Modified"))
    document = parse_stream(text)
    if not select_releases(document, source.architectures):
        raise StreamMetadataInvalid(
            f"$.architectures: has no metal ISO for {', '.join(source.architectures)}"
        )
    return state.with_document(source, document, validators)
