"""``COREOS_STREAMS``: what each stream offers, asked again and again; what is known outlives the process.

A stream that cannot be asked, or tells nonsense, changes nothing: what it told before stays good.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger, LogLevel

from image_service.concurrency.interruption import Interrupted, Interruption
from image_service.errors import StreamMetadataInvalid, Unavailable
from image_service.settings.os_images import FULL_ISO, OsImage
from image_service.streams.stream_refresh import refresh
from image_service.streams.stream_state import StreamState, load_state, move_alias, recall, save_state

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping
    from pathlib import Path

    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.concurrency.threads import InThread
    from image_service.coreos.stream_metadata import Release
    from image_service.settings.stream_sources import StreamSource
    from image_service.streams.stream_refresh import Http
T = TypeVar("T")

RETRY_SECONDS = 30.0
"""After a first failure; each further one doubles it, up to the time between two refreshes."""
JITTER = 0.1
"""By what part of itself a time is made longer or shorter, so that replicas do not ask together."""


@attrs.frozen
class StreamRelease:
    """A release that is wanted.

    Args:
        stream: its stream's name.
        release: what it is.
    """

    stream: str
    release: Release

    @property
    def entry(self) -> OsImage:
        """The base image that its ISO becomes."""
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


@attrs.define(eq=False)
class _Stream:
    """One stream, with what is going on."""

    source: StreamSource
    path: Path
    state: StreamState = attrs.field(factory=StreamState)
    releases: Mapping[str, tuple[Release, ...]] = attrs.field(factory=dict)
    """Those that are wanted by architecture, the newest first."""
    fault: str = ""
    failures: int = 0
    timer: IDelayedCall | None = None

    def learn(self, state: StreamState) -> None:
        """Go on with what is known now."""
        self.state = state
        releases = state.releases(self.source)
        by_architecture = {
            architecture: tuple(release for release in releases if release.architecture == architecture)
            for architecture in self.source.architectures
        }
        self.releases = {name: found for name, found in by_architecture.items() if found}


class Streams:
    """The streams of ``COREOS_STREAMS``.

    Args:
        clock: times the refreshes.
        in_thread: runs what waits for networks and disks; in one thread, so that what is written last stays.
        http: asks origins.
        sources: the streams.
        data_dir: where what they told is remembered.
        refresh_seconds: between two refreshes of one stream.
        asks: whether origins are asked; else another process does, and what it remembers is read.
        jitter: gives a number between two others.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - each a part that tests put another in the place of
        self,
        clock: IReactorTime,
        in_thread: InThread,
        http: Http,
        sources: Iterable[StreamSource],
        data_dir: Path,
        *,
        refresh_seconds: float,
        asks: bool = True,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._http = http
        self._refresh_seconds = refresh_seconds
        self._asks = asks
        self._jitter = jitter
        self._streams = [
            _Stream(source, data_dir / f"rhcos-stream-{source.stream}.json") for source in sources
        ]
        self._interruption = Interruption()
        self._running: set[Deferred[None]] = set()

    async def start(self, changed: Callable[[], None]) -> None:
        """Recall what was told before, and begin to ask what is new.

        Args:
            changed: called when other releases are wanted than before.
        """
        self._changed = changed
        for stream in self._streams:
            stream.learn(await self._in_thread(partial(load_state, stream.path, stream.source)))
        if self.wanted:
            self._changed()
        for stream in self._streams:
            self._begin(stream)

    async def settled(self) -> None:
        """Wait for the refreshes that are going on, and for what is being written."""
        while self._running:
            await gatherResults(list(self._running))

    async def stop(self) -> None:
        """End what is going on."""
        self._interruption.interrupt()
        for stream in self._streams:
            if stream.timer:
                stream.timer.cancel()
                stream.timer = None
        await self.settled()

    @property
    def wanted(self) -> tuple[StreamRelease, ...]:
        """The releases to be held: by stream and architecture, the newest first."""
        return tuple(
            StreamRelease(stream.source.stream, release)
            for stream in self._streams
            for releases in stream.releases.values()
            for release in releases
        )

    @property
    def aliases(self) -> Mapping[tuple[str, str], str]:
        """The release that a stream's name stands for, by stream and architecture, where one was ready."""
        return {
            (stream.source.stream, architecture): version
            for stream in self._streams
            for architecture, version in stream.state.aliases.items()
        }

    def move_aliases(self, is_ready: Callable[[Release], bool]) -> None:
        """Let the streams' names stand for releases that have become ready.

        Args:
            is_ready: whether one can be served.
        """
        for stream in self._streams:
            before = stream.state.aliases
            moved = {
                architecture: move_alias(before.get(architecture), releases, is_ready)
                for architecture, releases in stream.releases.items()
            }
            aliases = {architecture: version for architecture, version in moved.items() if version}
            if aliases != before:
                self._tell_of_moves(stream, aliases)
                stream.state = attrs.evolve(stream.state, aliases=aliases)
                self._track(self._save(stream))

    def _tell_of_moves(self, stream: _Stream, aliases: Mapping[str, str]) -> None:
        for architecture, version in aliases.items():
            if version != stream.state.aliases.get(architecture):
                self._log.info(
                    "stream {stream} for {architecture} is {release} now",
                    stream=stream.source.stream,
                    architecture=architecture,
                    release=version,
                )

    def _begin(self, stream: _Stream) -> None:
        stream.timer = None
        self._track(self._refresh(stream))

    def _track(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that raises nothing, and that ``stop`` waits for."""
        running = Deferred.fromCoroutine(work)
        if not running.called:
            self._running.add(running)
            running.addCallback(lambda _: self._running.discard(running))

    async def _refresh(self, stream: _Stream) -> None:
        """Ask once, and see that it is asked again. Raises nothing."""
        before = stream.state
        ask = partial(refresh, stream.source, before, self._http, self._interruption)
        try:
            told = await self._in_thread(
                ask if self._asks else partial(recall, stream.path, stream.source, before)
            )
        except Interrupted:
            return
        except (Unavailable, StreamMetadataInvalid) as error:
            self._fail(stream, error.detail)
        except Exception:  # noqa: BLE001 - a fault of ours must not end the refreshes
            self._log.failure("stream {stream} met a fault", stream=stream.source.stream)
            self._fail(stream, "asking it met a fault of this service; the log has it")
        else:
            await self._take(stream, before, told)
        if not self._interruption.is_set:
            stream.timer = self._clock.callLater(self._delay(stream), self._begin, stream)

    async def _take(self, stream: _Stream, before: StreamState, told: StreamState) -> None:
        """Go on with what was told; the names may have moved while it was asked for."""
        if stream.fault:
            self._log.info("stream {stream} tells what it offers again", stream=stream.source.stream)
        stream.fault, stream.failures = "", 0
        if told == before:
            return
        known = stream.releases
        stream.learn(attrs.evolve(told, aliases=stream.state.aliases))
        if stream.releases != known:
            self._tell_of_releases(stream)
            self._changed()
        await self._save(stream)

    def _tell_of_releases(self, stream: _Stream) -> None:
        newest = {architecture: releases[0].version for architecture, releases in stream.releases.items()}
        for architecture in stream.source.architectures:
            self._log.emit(
                LogLevel.info if architecture in newest else LogLevel.warn,
                "stream {stream} offers {release} for {architecture}",
                stream=stream.source.stream,
                architecture=architecture,
                release=newest.get(architecture, "no ISO"),
            )

    async def _save(self, stream: _Stream) -> None:
        """Remember it; without, a restart asks for all of it again. Raises nothing."""
        if not self._asks:
            return
        try:
            await self._in_thread(partial(save_state, stream.path, stream.state))
        except OSError as error:
            self._log.warn(
                "what stream {stream} told is not remembered: {reason}",
                stream=stream.source.stream,
                reason=error.strerror or str(error),
            )

    def _fail(self, stream: _Stream, reason: str) -> None:
        """Tell the reason, but not again each time."""
        stream.failures += 1
        if stream.fault != reason:
            self._log.warn(
                "stream {stream} cannot be asked: {reason}", stream=stream.source.stream, reason=reason
            )
        stream.fault = reason

    def _delay(self, stream: _Stream) -> float:
        """Seconds until the next refresh."""
        seconds = self._refresh_seconds
        if stream.failures:
            seconds = min(seconds, RETRY_SECONDS * 2.0 ** min(stream.failures - 1, 20))
        return seconds * self._jitter(1 - JITTER, 1 + JITTER)
