"""The state of one stream: the documents that list its newest releases, and the release its alias stands for.

It is stored as ``rhcos-stream-NAME.json``, so that a restart needs no network::

    source         SHA-256 of the URL, whose query may hold a credential; empty: nothing was fetched
    etag, last_modified
                   validators of the newest document; null: it had none
    documents      stream metadata as it was published, the newest first; each lists a kept release that
                   those before it do not
    aliases        by architecture, the release that the stream's name stands for
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.coreos.stream_metadata import (
    MAX_DOCUMENT_BYTES,
    metal_members,
    parse_stream,
    select_releases,
)
from image_service.errors import StreamMetadataInvalid
from image_service.files.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from image_service.catalog.download.origin_client import OriginClient
    from image_service.concurrency.interruption import Interruption
    from image_service.coreos.stream_metadata import Document, Release
    from image_service.settings.stream_sources import StreamSource

    Validators: TypeAlias = tuple[str | None, str | None]


@attrs.frozen
class StreamState:
    """The state of one stream, as it is stored."""

    source: str = ""
    etag: str | None = None
    last_modified: str | None = None
    documents: tuple[Document, ...] = attrs.field(default=(), repr=False)
    aliases: Mapping[str, str] = attrs.field(factory=dict)

    def preconditions(self, source: StreamSource) -> Mapping[str, str]:
        """Return the header fields of a request that gets 304 if nothing has changed."""
        if not self.documents or self.source != _digest(source.url):
            return {}
        fields = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in fields.items() if value is not None}

    def with_document(self, source: StreamSource, document: Document, validators: Validators) -> StreamState:
        """Return the state after fetching a document, valid for all architectures of `source`."""
        etag, last_modified = validators
        documents = self.documents
        if not documents or metal_members(documents[0]) != metal_members(document):
            documents = (document, *documents)
            indexes = sorted({index for index, _ in _kept_releases(documents, source)})
            documents = tuple(documents[index] for index in indexes)
        return attrs.evolve(
            self, source=_digest(source.url), etag=etag, last_modified=last_modified, documents=documents
        )

    def releases(self, source: StreamSource) -> tuple[Release, ...]:
        """Return the releases to keep of each architecture, the newest first."""
        return tuple(release for _, release in _kept_releases(self.documents, source))


def load_state(path: Path, source: StreamSource) -> StreamState:
    """Return the stored state; an empty one if there is none, or no valid one.

    Documents that are not valid for all architectures of `source` are left out.
    """
    try:
        members = json.loads(path.read_bytes())
        documents = []
        for document in members.pop("documents"):
            with suppress(StreamMetadataInvalid):
                parsed = parse_stream(json.dumps(document).encode())
                select_releases(parsed, source.architectures)
                documents.append(parsed)
        texts = (members["source"], *members["aliases"].values())
        validators = (members["etag"], members["last_modified"])
        if not all(isinstance(text, str) for text in (*texts, *filter(None, validators))):
            return StreamState()
        return StreamState(documents=tuple(documents), **members)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return StreamState()


def refresh_state(
    source: StreamSource, state: StreamState, client: OriginClient, interruption: Interruption
) -> StreamState:
    """Fetch the document of a stream, if it has changed, and return the state after that.

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


def reload_state(path: Path, source: StreamSource, state: StreamState) -> StreamState:
    """Return the state that another process stored, with the aliases of this one."""
    stored = load_state(path, source)
    return attrs.evolve(stored, aliases=state.aliases) if stored.documents else state


def save_state(path: Path, state: StreamState) -> None:
    """Replace the stored state atomically; raises OSError if it cannot be written."""
    with atomic_write(path) as file:
        file.write(json.dumps(attrs.asdict(state, recurse=False)).encode())


def move_alias(
    current: str | None, releases: Sequence[Release], is_ready: Callable[[Release], bool]
) -> str | None:
    """Return the version that a stream's name stands for: the newest release that is ready.

    It never moves to an older release, not even if the current one is not ready after a restart. `releases`
    are the desired ones, the newest first. None: none is ready, and the current one is not desired any more.
    """
    for release in releases:
        if release.version == current or is_ready(release):
            return release.version
    return None


def _kept_releases(documents: tuple[Document, ...], source: StreamSource) -> Iterator[tuple[int, Release]]:
    """Yield each release to keep, with the index of the newest document that lists it."""
    seen: dict[str, set[str]] = {architecture: set() for architecture in source.architectures}
    for index, document in enumerate(documents):
        for release in select_releases(document, source.architectures):
            versions = seen[release.architecture]
            if release.version not in versions and len(versions) < source.keep:
                versions.add(release.version)
                yield index, release


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
