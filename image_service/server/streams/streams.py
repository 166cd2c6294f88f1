"""``COREOS_STREAMS``: polls the metadata of each stream; the last valid metadata is kept across restarts.

A stream that cannot be fetched, or whose metadata is not valid, keeps its releases.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger, LogLevel

from image_service.common.concurrency.backoff import Backoff
from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import StreamMetadataInvalid, Unavailable, describe_os_error
from image_service.server.streams.stream import Stream, StreamRelease
from image_service.server.streams.stream_state import (
    fetch_document,
    load_state,
    move_alias,
    save_state,
    state_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping
    from pathlib import Path

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.process_parts import InThread
    from image_service.core.families.coreos.stream_metadata import Release
    from image_service.server.catalog.download.origin_client import OriginClient
    from image_service.server.streams.stream_state import StreamState
    from image_service.settings.stream_sources import StreamSource

RETRY_SECONDS = 30.0
"""At most, after a first failure; the time between two refreshes is the limit after many."""
JITTER = 0.1
"""As a fraction, so that replicas do not poll in step."""


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
        self._data_dir = data_dir
        self._streams = list(map(self._make, sources))
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

    def replace_sources(self, sources: Iterable[StreamSource]) -> None:
        """Keep the streams that are as before, take the others, and forget the rest.

        A stream with another source keeps its releases until those of that source are ready.
        """
        before = {stream.source.stream: stream for stream in self._streams}
        self._streams = []
        for source in sources:
            stream = before.get(source.stream)
            if stream is not None and stream.source == source:
                self._streams.append(before.pop(source.stream))
                continue
            self._streams.append(begun := self._make(source))
            if stream is None:
                self._track(self._load(begun))
            else:
                begun.set_state(stream.state.for_source(source))
                self._start_refresh(begun)
        for stream in before.values():
            stream.cancel_timer()

    def _make(self, source: StreamSource) -> Stream:
        path = state_path(self._data_dir, source)
        return Stream(source, path, refreshed_at=self._clock.seconds())

    async def _load(self, stream: Stream) -> None:
        """Load the stored state of a new stream, and refresh it. Raises nothing."""
        stream.set_state(await self._in_thread(partial(load_state, stream.path, stream.source)))
        if self._is_current(stream):
            if any(stream.releases.values()):
                self._changed()
            self._start_refresh(stream)

    def _is_current(self, stream: Stream) -> bool:
        """Return True unless the stream was replaced, or the service stops."""
        return stream in self._streams and not self._interruption.is_set

    async def wait_until_idle(self) -> None:
        """Wait until no refresh is running and no state is being written."""
        while self._running:
            await gatherResults(list(self._running))

    async def stop(self) -> None:
        """Interrupt the refreshes that are running, and wait for their end."""
        self._interruption.interrupt()
        for stream in self._streams:
            stream.cancel_timer()
        await self.wait_until_idle()

    @property
    def desired(self) -> tuple[StreamRelease, ...]:
        """The releases to keep: by stream and architecture, the newest first, default streams before others.

        Those of another stream are for an OpenShift version too, once its default stream is known: before,
        the version alone would mean them.
        """
        return tuple(
            StreamRelease(
                stream.source.stream,
                release,
                stream.source.openshift_version if self._is_for_version(stream) else None,
                stream.source.key,
                stream.source.mirror,
            )
            for stream in self._in_order
            for releases in stream.releases.values()
            for release in releases
        )

    @property
    def aliases(self) -> Mapping[tuple[str, str], str]:
        """The release that a stream's name stands for, by stream and architecture, once one was ready.

        An OpenShift version stands for its default stream.
        """
        named: dict[tuple[str, str], str] = {}
        for stream in reversed(self._in_order):
            for architecture, version in stream.state.aliases.items():
                named[stream.source.stream, architecture] = version
                if stream.source.openshift_version and stream.state.is_default:
                    named[stream.source.openshift_version, architecture] = version
        return named

    @property
    def _in_order(self) -> list[Stream]:
        """The streams, those that an OpenShift version alone means before others."""
        return sorted(self._streams, key=lambda stream: not stream.state.is_default)

    def _is_for_version(self, stream: Stream) -> bool:
        version = stream.source.openshift_version
        return any(
            each.source.openshift_version == version and each.state.is_default and any(each.releases.values())
            for each in self._streams
        )

    @property
    def failures(self) -> Mapping[str, int]:
        """The failed attempts to refresh each stream since the last successful one, by its name."""
        return {stream.source.stream: stream.failures for stream in self._streams}

    @property
    def ages_seconds(self) -> Mapping[str, float]:
        """The seconds since each stream was last refreshed, at first since the start, by its name."""
        now = self._clock.seconds()
        return {stream.source.stream: now - stream.refreshed_at for stream in self._streams}

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

    def _start_refresh(self, stream: Stream) -> None:
        stream.timer = None
        self._track(self._refresh(stream))

    def _track(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that raises nothing, and that ``stop`` waits for."""
        running = Deferred.fromCoroutine(work)
        if not running.called:
            self._running.add(running)
            running.addCallback(lambda _: self._running.discard(running))

    async def _refresh(self, stream: Stream) -> None:
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
            stream.fault, stream.failures, stream.refreshed_at = "", 0, self._clock.seconds()
            delay = self._refresh_seconds * self._jitter(1 - JITTER, 1 + JITTER)
            if state != stream.state and self._is_current(stream):
                await self._set_state(stream, state)
        if self._is_current(stream):
            stream.timer = self._clock.callLater(delay, self._start_refresh, stream)

    async def _refreshed_state(self, stream: Stream) -> StreamState:
        """Return the state after a refresh; aliases may move meanwhile."""
        source = stream.source
        if not self._fetches:
            stored = await self._in_thread(partial(load_state, stream.path, source))
            return stream.state.with_stored(source, stored)
        fetch = partial(fetch_document, source, stream.state, self._client, self._interruption)
        fetched = await self._in_thread(fetch)
        return stream.state.with_offer(source, *fetched) if fetched else stream.state

    async def _set_state(self, stream: Stream, state: StreamState) -> None:
        releases, was_default = stream.releases, stream.state.is_default
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
        if stream.releases != releases or state.is_default != was_default:
            self._changed()
        await self._save(stream)

    async def _save(self, stream: Stream) -> None:
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

    def _record_failure(self, stream: Stream, reason: str) -> float:
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
