"""What is known of one stream: the documents that told of its newest releases, and where its name points.

It is remembered as ``rhcos-stream-NAME.json``, so that a restart goes on without the network::

    source         SHA-256 of the URL, whose query may hold a credential
    etag, last_modified
                   validators of the newest document; null: it had none
    documents      stream metadata as it was published, the newest first
    aliases        by architecture, the release that the stream's name stands for
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from image_service.coreos.stream_metadata import metal_members, parse_stream, select_releases
from image_service.errors import StreamMetadataInvalid
from image_service.files.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from image_service.coreos.stream_metadata import Document, Release
    from image_service.settings.stream_sources import StreamSource

    Validators: TypeAlias = tuple[str | None, str | None]


@attrs.frozen
class StreamState:
    """What is known.

    Args:
        source: SHA-256 of the URL that the validators belong to; empty: they belong to none.
        etag: of the newest document; None: it has none.
        last_modified: likewise.
        documents: the newest first, each of which offers something that those before it do not.
        aliases: release by architecture.
    """

    source: str = ""
    etag: str | None = None
    last_modified: str | None = None
    documents: tuple[Document, ...] = attrs.field(default=(), repr=False)
    aliases: Mapping[str, str] = attrs.field(factory=dict)

    def conditions(self, source: StreamSource) -> Mapping[str, str]:
        """Give the fields of a request that is answered by 304 where nothing has changed."""
        if not self.documents or self.source != _digest(source.url):
            return {}
        fields = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in fields.items() if value is not None}

    def told(self, source: StreamSource, document: Document, validators: Validators) -> StreamState:
        """Give what is known once a document has come.

        Args:
            source: where it comes from.
            document: is right for all architectures of ``source``.
            validators: ETag and Last-Modified that came with it.
        """
        etag, last_modified = validators
        known = self.documents
        if not known or metal_members(known[0]) != metal_members(document):
            known = _needed((document, *known), source)
        return attrs.evolve(
            self, source=_digest(source.url), etag=etag, last_modified=last_modified, documents=known
        )

    def releases(self, source: StreamSource) -> tuple[Release, ...]:
        """Give the newest releases of each architecture, as many as stay; newest first."""
        return tuple(release for _, release in _newest(self.documents, source))


def load_state(path: Path, source: StreamSource) -> StreamState:
    """Give what is remembered.

    Args:
        path: where.
        source: documents that are not right for its architectures are left out.

    Returns:
        the state; an empty one where there is none, or something else.
    """
    try:
        members = json.loads(path.read_bytes())
        documents = tuple(_usable(members.pop("documents"), source))
        return StreamState(documents=documents, **_checked(members))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return StreamState()


def recall(path: Path, source: StreamSource, known: StreamState) -> StreamState:
    """Give what another process has remembered meanwhile.

    Args:
        path: where.
        source: as ``load_state``'s.
        known: what is known here. Names point to what is ready here, whatever is elsewhere.

    Returns:
        what is known then.
    """
    told = load_state(path, source)
    return attrs.evolve(told, aliases=known.aliases) if told.documents else known


def save_state(path: Path, state: StreamState) -> None:
    """Remember it.

    Args:
        path: where; is there whole or not at all.
        state: what.

    Raises:
        OSError: it cannot be written.
    """
    with atomic_write(path) as file:
        file.write(json.dumps(attrs.asdict(state, recurse=False)).encode())


def move_alias(
    current: str | None, releases: Sequence[Release], is_ready: Callable[[Release], bool]
) -> str | None:
    """Find the release that a stream's name stands for: the newest that is ready.

    It stays where it is until a newer one is ready, and does not go back: what is read again after a restart
    is not ready either.

    Args:
        current: the version it stood for until now; None: none.
        releases: those that are wanted, the newest first.
        is_ready: whether one can be served.

    Returns:
        the version; None: none is ready, and the current one is not wanted any more.
    """
    for release in releases:
        if release.version == current or is_ready(release):
            return release.version
    return None


def _needed(documents: tuple[Document, ...], source: StreamSource) -> tuple[Document, ...]:
    """Those that tell of a release that stays."""
    indexes = sorted({index for index, _ in _newest(documents, source)})
    return tuple(documents[index] for index in indexes)


def _newest(documents: tuple[Document, ...], source: StreamSource) -> Iterator[tuple[int, Release]]:
    """Each release that stays, with the index of the newest document that tells of it."""
    seen: dict[str, set[str]] = {architecture: set() for architecture in source.architectures}
    for index, document in enumerate(documents):
        for release in select_releases(document, source.architectures):
            versions = seen[release.architecture]
            if release.version not in versions and len(versions) < source.keep:
                versions.add(release.version)
                yield index, release


def _usable(documents: list[object], source: StreamSource) -> Iterator[Document]:
    for document in documents:
        with suppress(StreamMetadataInvalid):
            parsed = parse_stream(json.dumps(document).encode())
            select_releases(parsed, source.architectures)
            yield parsed


def _checked(members: dict[str, Any]) -> dict[str, Any]:
    """Refuse members of other types than were written."""
    texts = (members["source"], *members["aliases"].values())
    validators = (members["etag"], members["last_modified"])
    if all(isinstance(text, str) for text in (*texts, *filter(None, validators))):
        return members
    raise TypeError


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
