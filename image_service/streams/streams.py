"""``COREOS_STREAMS``: polls the metadata of each stream; the last valid metadata is kept across restarts.

A stream that cannot be fetched, or whose metadata is not valid, keeps its releases.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger, LogLevel

from image_service.concurrency.backoff import Backoff
from image_service.concurrency.interruption import Interrupted, Interruption
from image_service.errors import StreamMetadataInvalid, Unavailable, describe_os_error
from image_service.settings.os_images import FULL_ISO, OsImage
from image_service.streams.stream_state import (
    StreamState,
    fetch_document,
    load_state,
    move_alias,
    save_state,
    state_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping
    from pathlib import Path

    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.catalog.download.origin_client import OriginClient
    from image_service.concurrency.parts import InThread
    from image_service.coreos.stream_metadata import Release
    from image_service.settings.stream_sources import StreamSource

RETRY_SECONDS = 30.0
"""At most, after a first failure; the time between two refreshes is the limit after many."""
JITTER = 0.1
"""As a fraction, so that replicas do not poll in step."""


@attrs.frozen
class StreamRelease:
    """A release of the stream of that name, for one architecture."""

    stream: str
    release: Release

    @property
    def entry(self) -> OsImage:
        """Its ISO as a base image."""
        release = self.release
        return OsImage(
            version=release.version,
            cpu_architecture=release.architecture,
            image_type=FULL_ISO,
            openshift_versions=(self.stream,),
            url=release.iso.location,
            sha256=release.iso.sha256,
            signature_url=release.iso.signature,
        )


def load_releases(data_dir: Path, sources: Iterable[StreamSource]) -> tuple[StreamRelease, ...]:
    """Return the releases to keep, as the stored states of streams have them."""
    return tuple(
        StreamRelease(source.stream, release)
        for source in sources
        for release in load_state(state_path(data_dir, source), source).releases(source)
    )


@attrs.define(eq=False)
class _Stream:
    source: StreamSource
    path: Path
    state: StreamState = attrs.field(factory=StreamState)
    releases: Mapping[str, tuple[Release, ...]] = attrs.field(factory=dict)
    """The desired ones by architecture, the newest first."""
    fault: str = ""
    failures: int = 0
    timer: IDelayedCall | None = None

    def set_state(self, state: StreamState) -> None:
        self.state = state
        releases = state.releases(self.source)
        self.releases = {
            architecture: tuple(release for release in releases if release.architecture == architecture)
            for architecture in self.source.architectures
        }


class Streams:
    """The streams of ``COREOS_STREAMS``.

    Args:
        in_thread: runs blocking work; in one thread, so that states are written in order.
        refresh_seconds: between two refreshes of one stream.
        fetches: False: another process fetches, and its stored states are read.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - each replaced by tests
        self,
        clock: IReactorTime,
        in_thread: InThread,
        client: OriginClient,
        sources: Iterable[StreamSource],
        data_dir: Path,
        *,
        refresh_seconds: float,
        fetches: bool = True,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._client = client
        self._refresh_seconds = refresh_seconds
        self._fetches = fetches
        self._jitter = jitter
        self._backoff = Backoff(RETRY_SECONDS, refresh_seconds, jitter)
        self._streams = [_Stream(source, state_path(data_dir, source)) for source in sources]
        self._interruption = Interruption()
        self._running: set[Deferred[None]] = set()

    async def start(self, changed: Callable[[], None]) -> None:
        """Load the stored states, and refresh them; call `changed` when other releases are desired."""
        self._changed = changed
        for stream in self._streams:
            stream.set_state(await self._in_thread(partial(load_state, stream.path, stream.source)))
        if self.desired:
            self._changed()
        for stream in self._streams:
            self._start_refresh(stream)

    async def wait_until_idle(self) -> None:
        """Wait until no refresh is running and no state is being written."""
        while self._running:
            await gatherResults(list(self._running))

    async def stop(self) -> None:
        """Interrupt the refreshes that are running, and wait for their end."""
        self._interruption.interrupt()
        for stream in self._streams:
            if stream.timer:
                stream.timer.cancel()
                stream.timer = None
        await self.wait_until_idle()

    @property
    def desired(self) -> tuple[StreamRelease, ...]:
        """The releases to keep: by stream and architecture, the newest first."""
        return tuple(
            StreamRelease(stream.source.stream, release)
            for stream in self._streams
            for releases in stream.releases.values()
            for release in releases
        )

    @property
    def aliases(self) -> Mapping[tuple[str, str], str]:
        """The release that a stream's name stands for, by stream and architecture, once one was ready."""
        return {
            (stream.source.stream, architecture): version
            for stream in self._streams
            for architecture, version in stream.state.aliases.items()
        }

    def move_aliases(self, may_replace: Callable[[Release, str | None], bool]) -> None:
        """Let the streams' names stand for the newest releases that are ready.

        Releases that these supersede may not be desired any more.

        Args:
            may_replace: returns whether a release is ready to replace that version; None: there is none yet.
        """
        for stream in self._streams:
            before = stream.state.aliases
            moved = {
                architecture: move_alias(before.get(architecture), releases, may_replace)
                for architecture, releases in stream.releases.items()
            }
            aliases = {architecture: version for architecture, version in moved.items() if version}
            if aliases == before:
                continue
            for architecture, version in aliases.items():
                if version != before.get(architecture):
                    self._log.info(
                        "stream {stream} for {architecture} is {release} now",
                        stream=stream.source.stream,
                        architecture=architecture,
                        release=version,
                    )
            stream.set_state(stream.state.with_aliases(stream.source, aliases))
            self._track(self._save(stream))

    def _start_refresh(self, stream: _Stream) -> None:
        stream.timer = None
        self._track(self._refresh(stream))

    def _track(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that raises nothing, and that ``stop`` waits for."""
        running = Deferred.fromCoroutine(work)
        if not running.called:
            self._running.add(running)
            running.addCallback(lambda _: self._running.discard(running))

    async def _refresh(self, stream: _Stream) -> None:
        """Refresh once, and schedule the next time. Raises nothing."""
        name = stream.source.stream
        try:
            state = await self._refreshed_state(stream)
        except Interrupted:
            return
        except (Unavailable, StreamMetadataInvalid) as error:
            delay = self._record_failure(stream, error.detail)
        except Exception:  # noqa: BLE001 - a defect must not end the refreshes
            self._log.failure("unexpected error while refreshing stream {stream}", stream=name)
            delay = self._record_failure(stream, "unexpected error; see the log")
        else:
            if stream.fault:
                self._log.info("stream {stream} is available again", stream=name)
            stream.fault, stream.failures = "", 0
            delay = self._refresh_seconds * self._jitter(1 - JITTER, 1 + JITTER)
            if state != stream.state:
                await self._set_state(stream, state)
        if not self._interruption.is_set:
            stream.timer = self._clock.callLater(delay, self._start_refresh, stream)

    async def _refreshed_state(self, stream: _Stream) -> StreamState:
        """Return the state after a refresh; aliases may move meanwhile."""
        source = stream.source
        if not self._fetches:
            stored = await self._in_thread(partial(load_state, stream.path, source))
            return stream.state.with_stored(source, stored)
        fetch = partial(fetch_document, source, stream.state, self._client, self._interruption)
        fetched = await self._in_thread(fetch)
        return stream.state.with_document(source, *fetched) if fetched else stream.state

    async def _set_state(self, stream: _Stream, state: StreamState) -> None:
        releases = stream.releases
        stream.set_state(state)
        if stream.releases != releases:
            for architecture, found in stream.releases.items():
                self._log.emit(
                    LogLevel.info if found else LogLevel.warn,
                    "stream {stream} offers {release} for {architecture}",
                    stream=stream.source.stream,
                    architecture=architecture,
                    release=found[0].version if found else "no ISO",
                )
            self._changed()
        await self._save(stream)

    async def _save(self, stream: _Stream) -> None:
        """Store the state; without it, a restart fetches everything again. Raises nothing."""
        if not self._fetches:
            return
        try:
            await self._in_thread(partial(save_state, stream.path, stream.state))
        except OSError as error:
            self._log.warn(
                "the state of stream {stream} cannot be stored: {reason}",
                stream=stream.source.stream,
                reason=describe_os_error(error),
            )

    def _record_failure(self, stream: _Stream, reason: str) -> float:
        """Log the reason, unless it is the last one again; return the seconds until the next attempt."""
        stream.failures += 1
        delay = self._backoff.delay_seconds(stream.failures)
        if stream.fault != reason:
            self._log.warn(
                "stream {stream} cannot be refreshed: {reason}; next attempt in {seconds:.0f} s",
                stream=stream.source.stream,
                reason=reason,
                seconds=delay,
            )
        stream.fault = reason
        return delay
