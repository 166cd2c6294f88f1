"""The state of one stream: the documents that list its newest releases, and the release its alias stands for.

A release was ready once the alias has moved to it. One that was counts for ``keep``; one that never was is
forgotten when the stream offers another.

It is stored as ``rhcos-stream-NAME.json``, so that a restart needs no network::

    source         SHA-256 of the URL, whose query may hold a credential; empty: nothing was fetched
    etag, last_modified
                   validators of the newest document; null: it had none. The etag of a file is its SHA-256,
                   that of a release payload its digest
    is_default     whether an OpenShift version alone means this stream
    documents      stream metadata, the newest first: that as it was published, older ones only for the
                   architectures whose release is kept
    aliases        by architecture, the release that the stream's name stands for
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.common.files.atomic import atomic_write
from image_service.common.registry.references import is_registry_url
from image_service.core.errors import StreamMetadataInvalid, Unavailable, describe_os_error
from image_service.core.families.coreos.stream_metadata import (
    MAX_DOCUMENT_BYTES,
    offered_members,
    parse_offer,
    parse_stream,
    restrict_architectures,
    select_releases,
)
from image_service.server.streams.payload import fetch_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.core.families.coreos.stream_metadata import Document, OfferedStream, Release
    from image_service.server.catalog.download.origin_client import OriginClient
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
    is_default: bool = True

    def preconditions(self, source: StreamSource) -> Mapping[str, str]:
        """Return the header fields of a request that gets 304 if nothing has changed."""
        if not self.documents or self.source != _digest(source):
            return {}
        fields = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in fields.items() if value is not None}

    def with_offer(self, source: StreamSource, offer: OfferedStream, validators: Validators) -> StreamState:
        """Return the state after fetching what is offered now; see `with_document`."""
        state = self.with_document(source, offer.document, validators)
        return attrs.evolve(state, is_default=offer.is_default)

    def with_document(self, source: StreamSource, document: Document, validators: Validators) -> StreamState:
        """Return the state after fetching a document, valid for all architectures of `source`."""
        etag, last_modified = validators
        documents = self.documents
        if not documents or offered_members(documents[0]) != offered_members(document):
            was_ready = _restrict_to_aliases(documents[:1], self.aliases, source)
            documents = (document, *was_ready, *documents[1:])
        else:  # the rest is passed on as it is now; the date stays that of the first one with these releases
            documents = ({**document, "metadata": documents[0]["metadata"]}, *documents[1:])
        return attrs.evolve(
            self, source=_digest(source), etag=etag, last_modified=last_modified, documents=documents
        ).with_aliases(source, self.aliases)

    def with_aliases(self, source: StreamSource, aliases: Mapping[str, str]) -> StreamState:
        """Return the state with these aliases, without the releases that are not kept any more."""
        kept: dict[int, set[str]] = {}
        for index, release in _kept_releases(self.documents, aliases, source):
            kept.setdefault(index, set()).add(release.architecture)
        older = [
            restrict_architectures(self.documents[index], kept[index]) for index in sorted(kept) if index
        ]
        return attrs.evolve(self, documents=(*self.documents[:1], *older), aliases=aliases)

    def with_stored(self, source: StreamSource, stored: StreamState) -> StreamState:
        """Return the state that another process stored, with the aliases of this one and their releases."""
        if not stored.documents:
            return self
        own = _restrict_to_aliases(self.documents, self.aliases, source)
        stored = attrs.evolve(stored, documents=(*stored.documents, *own))
        return stored.with_aliases(source, self.aliases)

    def for_source(self, source: StreamSource) -> StreamState:
        """Return the state without the documents that are not valid for all architectures of `source`."""
        return attrs.evolve(self, documents=tuple(each for each in self.documents if _is_valid(each, source)))

    def releases(self, source: StreamSource) -> tuple[Release, ...]:
        """Return the releases to keep of each architecture, the newest first."""
        return tuple(release for _, release in _kept_releases(self.documents, self.aliases, source))


def state_path(data_dir: Path, source: StreamSource) -> Path:
    """Return the path of a stream's stored state."""
    return data_dir / f"rhcos-stream-{source.stream}.json"


def load_state(path: Path, source: StreamSource) -> StreamState:
    """Return the stored state; an empty one if there is none, or no valid one.

    Documents that are not valid for all architectures of `source` are left out.
    """
    try:
        members = json.loads(path.read_bytes())
        documents = []
        for document in members.pop("documents"):
            with suppress(StreamMetadataInvalid):
                documents.append(parse_stream(json.dumps(document).encode()))
        texts = (members["source"], *members["aliases"].values())
        validators = (members["etag"], members["last_modified"])
        is_default = members.setdefault("is_default", True)
        if not all(isinstance(text, str) for text in (*texts, *filter(None, validators))):
            return StreamState()
        if not isinstance(is_default, bool):
            return StreamState()
        return StreamState(documents=tuple(documents), **members).for_source(source)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return StreamState()


def fetch_document(
    source: StreamSource, state: StreamState, client: OriginClient, interruption: Interruption
) -> tuple[OfferedStream, Validators] | None:
    """Fetch the document of a stream; None if it has not changed.

    Raises:
        Unavailable: it cannot be fetched.
        StreamMetadataInvalid: it is not stream metadata, or has no ISO for any of the architectures.
        Interrupted: the service stops.
    """
    preconditions, path = state.preconditions(source), source.local_path
    payload = None
    if path is not None:
        fetched = _read_file(path, preconditions)
    elif is_registry_url(source.url):
        payload = fetch_payload(source, preconditions.get("If-None-Match"), client, interruption)
        fetched = (payload.config_map, (payload.digest, None)) if payload else None
    else:
        fetched = _fetch(source.url, preconditions, client, interruption)
    if fetched is None:
        return None
    text, validators = fetched
    offer = parse_offer(text, source.key)
    offer = offer.located(payload.url_of(offer.name) if payload else None)
    if not select_releases(offer.document, source.architectures):
        raise StreamMetadataInvalid(
            f"$.architectures: has no metal ISO for {', '.join(source.architectures)}"
        )
    return offer, validators


def _fetch(
    url: str, preconditions: Mapping[str, str], client: OriginClient, interruption: Interruption
) -> tuple[bytes, Validators] | None:
    with client.fetch(url, preconditions, interruption) as response:
        if response.status == HTTPStatus.NOT_MODIFIED and preconditions:
            return None
        text = response.read_all(MAX_DOCUMENT_BYTES)
        return text, (response.field("ETag") or None, response.field("Last-Modified") or None)


def _read_file(path: Path, preconditions: Mapping[str, str]) -> tuple[bytes, Validators] | None:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {describe_os_error(error)}") from None
    etag = hashlib.sha256(text).hexdigest()
    return None if preconditions.get("If-None-Match") == etag else (text, (etag, None))


def save_state(path: Path, state: StreamState) -> None:
    """Replace the stored state atomically; raises OSError if it cannot be written."""
    with atomic_write(path) as file:
        file.write(json.dumps(attrs.asdict(state, recurse=False)).encode())


def move_alias(
    current: str | None, releases: Sequence[Release], may_replace: Callable[[Release, str | None], bool]
) -> str | None:
    """Return the version that a stream's name stands for: the newest release that is ready.

    It never moves to an older release, not even if the current one is not ready after a restart. `releases`
    are the desired ones, the newest first. None: none is ready, and the current one is not desired any more.
    """
    for release in releases:
        if release.version == current or may_replace(release, current):
            return release.version
    return None


def _kept_releases(
    documents: Iterable[Document], aliases: Mapping[str, str], source: StreamSource
) -> Iterator[tuple[int, Release]]:
    """Yield each release to keep, with the index of the newest document that lists it.

    The release that the stream offers does not count before it is ready; that of an alias is always kept.
    """
    offered: dict[str, str] = {}
    counted: dict[str, set[str]] = {architecture: set() for architecture in source.architectures}
    for index, document in enumerate(documents):
        for release in select_releases(document, source.architectures):
            architecture, version = release.architecture, release.version
            versions, is_alias = counted[architecture], aliases.get(architecture) == version
            if index == 0 and not is_alias:
                offered[architecture] = version
            elif version in {offered.get(architecture), *versions}:
                continue
            elif is_alias or len(versions) < source.keep:
                versions.add(version)
            else:
                continue
            yield index, release


def _is_valid(document: Document, source: StreamSource) -> bool:
    try:
        select_releases(document, source.architectures)
    except StreamMetadataInvalid:
        return False
    return True


def _restrict_to_aliases(
    documents: Iterable[Document], aliases: Mapping[str, str], source: StreamSource
) -> Iterator[Document]:
    """Yield the documents, each with only those releases that an alias stands for."""
    for document in documents:
        releases = select_releases(document, source.architectures)
        named = {each.architecture for each in releases if aliases.get(each.architecture) == each.version}
        yield restrict_architectures(document, named)


def _digest(source: StreamSource) -> str:
    text = source.url if source.config_map_stream is None else f"{source.url} {source.config_map_stream}"
    return hashlib.sha256(text.encode()).hexdigest()
