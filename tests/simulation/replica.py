"""A simulated replica: the product's snapshots, claims and request handler over simulated engines."""

from __future__ import annotations

import enum
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast
from unittest.mock import patch

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import LoopingCall

from image_service.common.concurrency.coordination import Coordination
from image_service.common.concurrency.process_parts import PartsStack
from image_service.core.errors import StoreFailed
from image_service.server.boot_progress.recording import ReadRecorder
from image_service.server.links.links import Links
from image_service.server.links.target_url import OwnUrls
from image_service.server.serving.digests import Digests
from image_service.server.serving.image_responses import ImageResponses
from image_service.server.serving.ipxe_scripts import IpxeScripts
from image_service.server.serving.pages import Pages
from image_service.server.serving.request_handler import ImageRequestHandler
from image_service.server.snapshots import build_snapshots
from image_service.server.snapshots.image_builder import ImageBuilder
from image_service.server.snapshots.replicas import build_replicas, changes
from tests.server.links.linking import MemoryLinks
from tests.simulation.database import SimulatedDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from random import Random

    from image_service.common.concurrency.coordination import SharedMemoryCoordination
    from image_service.server.assisted.client import AssistedService
    from image_service.server.assisted.customizations import AssistedApi
    from image_service.server.snapshots.build_snapshots import BootImageParts
    from image_service.server.snapshots.image_builder import BaseImageSource
    from image_service.settings.settings import Settings
    from tests.simulation.database import SimulatedServer
    from tests.simulation.events import Machine

T = TypeVar("T")

BASE_URL = "https://images.test"
DATABASE_POOLS = {"store", "claims", "database"}
"""Pools of threads that wait for the database."""
NOTIFICATION_SECONDS = 0.045
"""How long a notification takes at most; the product counts on 0.05."""
POLL_SECONDS = 1.0
MAX_GAP_SECONDS = 5.0
"""Between two polls of the product; after a longer one it reads everything again."""
PAGES = Pages(lambda: "")
ABORT_SECONDS = 11.0
"""After this the product has ended a transaction that hangs."""


class Link(enum.Enum):
    """How a replica reaches the database."""

    UP = "up"
    REFUSED = "refused"
    HANGING = "hanging"
    SLOW = "slow"
    LOSSY = "lossy"  # of some transactions the outcome is not learned

    @property
    def is_cut(self) -> bool:
        """True if nothing arrives."""
        return self is Link.REFUSED or self is Link.HANGING


@attrs.define(eq=False)
class Connection:
    """The way from a replica to the database.

    Args:
        is_notified: notifications arrive; else a pooler is in between, and changes are polled.
        until: when it is up again.
    """

    server: SimulatedServer
    machine: Machine
    chance: Random
    is_notified: bool = True
    link: Link = Link.UP
    until: float = 0.0

    def disturb(self, link: Link, seconds: float) -> None:
        """Have it fail for a while."""
        self.link, self.until = link, self.machine.events.now + seconds

    @property
    def state(self) -> Link:
        """How it is now."""
        return self.link if self.machine.events.now < self.until else Link.UP

    def delay(self) -> float:
        """Return how long one way takes."""
        return (
            self.chance.uniform(0.1, 1.5) if self.state is Link.SLOW else self.chance.uniform(0.0002, 0.004)
        )


class SimulatedParts(PartsStack):
    """Parts whose threads are simulated: chance decides when each begins and ends its work."""

    def __init__(self, machine: Machine, connection: Connection) -> None:
        super().__init__(cast("Any", machine))
        self._machine = machine
        self._connection = connection

    def in_thread_pool(
        self, threads: int, name: str, *, low_priority: bool = False
    ) -> Callable[[Callable[[], T]], Deferred[T]]:
        """As `PartsStack.in_thread_pool`."""
        del low_priority
        connection = self._connection if name in DATABASE_POOLS else None
        return Threads(self._machine, connection, threads).run


class Threads:
    """A pool of threads. Work is done at once, at a moment between its beginning and its end."""

    def __init__(self, machine: Machine, connection: Connection | None, number: int) -> None:
        self._machine = machine
        self._connection = connection
        self._free = number
        self._waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def run(self, work: Callable[[], T], /) -> Deferred[T]:
        """Have work done by the next free thread."""
        done: Deferred[T] = Deferred()
        self._waiting.append((work, done))
        self._start()
        return done

    def _start(self) -> None:
        if self._free and self._waiting:
            self._free -= 1
            work, done = self._waiting.pop(0)
            self._machine.callLater(self._delay(), self._work, work, done, self._machine.seconds())

    def _work(self, work: Callable[[], Any], done: Deferred[Any], since: float) -> None:
        connection = self._connection
        state = Link.UP if connection is None else connection.state
        if (
            state is Link.HANGING
            and connection is not None
            and self._machine.seconds() < since + ABORT_SECONDS
        ):
            until = min(connection.until, since + ABORT_SECONDS)
            self._machine.callLater(until - self._machine.seconds() + 1e-6, self._work, work, done, since)
            return
        result: Any = StoreFailed("the database cannot be reached")
        if not state.is_cut:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - as a thread pool does
                result = error
        if state is Link.LOSSY and self._machine.events.chance.random() < 0.5:
            result = StoreFailed("the connection was lost")
        self._machine.callLater(self._delay(), self._end, result, done)

    def _end(self, result: Any, done: Deferred[Any]) -> None:
        self._free += 1
        self._start()
        if not done.called:
            (done.errback if isinstance(result, Exception) else done.callback)(result)

    def _delay(self) -> float:
        if self._connection is not None:
            return self._connection.delay()
        return self._machine.events.chance.uniform(0.001, 0.05)


class SimulatedListener:
    """Hears the changes of other replicas, in place of `Listener`: notified, or by polling."""

    def __init__(self, connection: Connection, local: SharedMemoryCoordination) -> None:
        self._connection = connection
        self._local = local
        self._machine = connection.machine
        self._heard_at = 0.0
        self._is_connected = False
        self._polled_at, self._seen = 0.0, frozenset[int]()
        self._loop = LoopingCall(self._watch)
        self._loop.clock = self._machine

    def start(self) -> None:
        """As `Listener.start`."""
        self._loop.start(POLL_SECONDS)

    def stop(self) -> None:
        """As `Listener.stop`."""
        self._is_connected = False
        self._loop.stop()

    def lose_connection(self) -> None:
        """Learn that the connection is lost."""
        self._is_connected = self._local.is_notified = False

    def notify(self, payload: str) -> None:
        """Get a notification, after those before it."""
        if self._is_connected and not self._machine.is_dead:
            now = self._machine.events.now
            at = max(self._heard_at, now + self._machine.events.chance.uniform(0, NOTIFICATION_SECONDS))
            self._heard_at = at
            self._machine.callLater(at - now, self._adopt, payload)

    def _adopt(self, payload: str) -> None:
        for key, counter in changes.parse(payload):
            self._local.adopt(key, counter)

    def _watch(self) -> None:
        if self._connection.state.is_cut:
            self.lose_connection()
        elif not self._connection.is_notified:
            self._poll()
        elif not self._is_connected:
            self._is_connected = self._local.is_notified = True
            self._local.bump_all()

    def _poll(self) -> None:
        rows, now = self._connection.server.transact(changes.read), self._machine.seconds()
        if now > self._polled_at + MAX_GAP_SECONDS:
            self._local.bump_all()
        for number in rows.keys() - self._seen:
            self._adopt(rows[number])
        self._polled_at, self._seen = now, frozenset(rows)


class ReplicaDatabase(SimulatedDatabase):
    """The database as one replica opens it, with what listens to it."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.server)
        self.connection = connection
        self.listener: SimulatedListener | None = None


class Unobserved:
    """Observes nothing, as a `ReplicaObserver`."""

    def record_claim(self, *_: object) -> None: ...

    def record_changes(self, *_: object) -> None: ...

    def watch_notifications(self, *_: object) -> None: ...


@attrs.define(eq=False)
class Replica:
    """One process of the service, from its start to its end.

    Args:
        handler: None: it has not started yet.
    """

    machine: Machine
    connection: Connection
    parts: SimulatedParts
    images: BootImageParts | None = None
    handler: ImageRequestHandler | None = None
    is_stopping: bool = False

    @classmethod
    def make(cls, machine: Machine, connection: Connection) -> Replica:
        """Return one that has not started."""
        return cls(machine, connection, SimulatedParts(machine, connection))

    def start(self, settings: Settings, assisted: AssistedApi, catalog: BaseImageSource) -> Deferred[None]:
        """Start it; the Deferred fires when it serves."""
        return Deferred.fromCoroutine(self._start(settings, assisted, catalog))

    async def _start(self, settings: Settings, assisted: AssistedApi, catalog: BaseImageSource) -> None:
        machine = self.machine
        made = await build_snapshots.build_boot_images(
            self.parts,
            settings,
            cast("AssistedService", assisted),
            Coordination(),
            get_base_url=lambda: BASE_URL,
            make_builder=lambda in_thread: ImageBuilder(
                catalog, cast("Any", None), in_thread, lambda: BASE_URL
            ),
            is_leader=True,
            count=lambda _: None,
            observer=Unobserved(),
            fail=_raise,
        )
        self.images = made
        images, digests = made.images, Digests(machine, lambda work: succeed(work()))
        links = Links(
            MemoryLinks(),
            lambda: made.sealed.cipher,
            images,
            OwnUrls(lambda: BASE_URL, frozenset({8080})),
            3600,
            coordination=made.coordination,
            clock=machine,
            wall_clock=made.wall_clock,
        )
        self.handler = ImageRequestHandler(
            images,
            ImageResponses(images, digests, ReadRecorder(machine.seconds)),
            PAGES,
            links=links,
            scripts=IpxeScripts(images, lambda: BASE_URL, "", uses_host=False),
        )

    def stop(self) -> Deferred[None]:
        """Stop it, as by SIGTERM."""
        self.is_stopping, self.handler = True, None
        return Deferred.fromCoroutine(self.parts.aclose())

    def kill(self) -> None:
        """End it, as by SIGKILL."""
        self.machine.kill()
        self.handler = None


@contextmanager
def simulated_engines(databases: Mapping[str, ReplicaDatabase]) -> Iterator[None]:
    """Have replicas open simulated databases, by URL, and listen to them."""

    def listen(_url: str, database: ReplicaDatabase, local: SharedMemoryCoordination, _: object) -> object:
        database.listener = SimulatedListener(database.connection, local)
        return database.listener

    with (
        patch.object(build_snapshots, "open_replica_database", databases.__getitem__),
        patch.object(build_replicas, "Listener", listen),
    ):
        yield


def _raise(error: Exception) -> None:
    raise error
