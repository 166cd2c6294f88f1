"""A simulated world: replicas over one database, an assisted-service, clients; and what befalls them."""

from __future__ import annotations

from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import deferLater

from image_service.core.errors import Conflict, Forbidden, NotFound
from tests.simulation.assisted import TIMEOUT_SECONDS, AssistedState, InfraEnvState, Mood, SimulatedAssisted
from tests.simulation.client import CONTENT, SimulatedClient
from tests.simulation.events import Events, Machine
from tests.simulation.oracle import CLAIM_SECONDS, REFUSED_SECONDS, TTL_SECONDS, WINDOW_SECONDS, Oracle
from tests.simulation.replica import ABORT_SECONDS, Connection, Link, Replica, ReplicaDatabase
from tests.simulation.scenery import PADDING_BYTES, SimulatedCatalog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from tests.simulation.client import Asked, Reply
    from tests.simulation.scenery import Scenery
    from tests.simulation.steps import Step

T = TypeVar("T")

INFRA_ENVS = ("a6c0ff12-3456-4789-8abc-def012345678", "b7d1ff12-3456-4789-8abc-def012345678")
REFUSALS = (Forbidden, NotFound, Conflict)
HEARD_SECONDS = 12.0
"""After a fault of the database; by then each replica listens again, and has written what it could not.

It is the sum of the circuit breaker's pause (5 s), the period in which mounts are stored (5 s), a poll (1 s)
and 1 s of leeway.
"""
MAX_AWAITED = 4
"""Of the ranges of `World.stream`: a validation, the storing of the mount, and what others change."""


class World:
    """Replicas, clients and services of one history.

    Args:
        seed: decides everything that the steps do not.
        steps: what happens.
    """

    def __init__(self, scenery: Scenery, seed: int, steps: Sequence[Step]) -> None:
        self.chance = Random(seed)
        self.steps = steps
        self.events = Events(self.chance)
        self.scenery = scenery
        scenery.server.clear()
        scenery.server.seconds = lambda: self.events.now
        scenery.server.notify = self._notify
        self.machine = Machine(self.events, "world")
        self.oracle = Oracle(self.events, scenery.bases)
        self.catalog = SimulatedCatalog(scenery.images)
        infra_envs = {id_: InfraEnvState(id_, f"token-{id_[:2]}") for id_ in INFRA_ENVS}
        self.assisted = AssistedState(self.events, self.oracle, infra_envs)
        for infra_env in infra_envs.values():
            self.oracle.permitted[infra_env.id, infra_env.token].append((0.0, True))
            self._record(infra_env)
        self.oracle.moods.append((0.0, True))
        self.heard_at = 0.0
        """By when all faults but claims that nobody releases are over."""
        self.databases: dict[str, ReplicaDatabase] = {}
        self.replicas: list[Replica] = []
        self.has_notifications = self.chance.random() < 0.8
        self.clients = [self._make_client(number, infra_envs[INFRA_ENVS[number == 3]]) for number in range(4)]
        self._next_client = count(len(self.clients))

    def run(self) -> None:
        """Let everything happen, until the end or the first fault."""
        for number in range(self.chance.choices((2, 3), (3, 1))[0]):
            self.replicas.append(self._start_replica(number))
        self.run_for(4)
        for step in self.steps:
            self.run_for(step.after)
            self.events.record(f"-- {step.act}")
            getattr(self, step.act)(*step.draws)
            if self.oracle.faults:
                return
        self._end()

    def run_for(self, seconds: float) -> None:
        """Let simulated time pass."""
        end = self.events.now + seconds
        while not self.oracle.faults and self.events.run_next(end):
            pass

    # What there is.

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Have work of a client done; an unexpected error is a fault."""
        Deferred.fromCoroutine(work).addErrback(lambda failure: self.oracle.fail(failure.getTraceback()))

    def running(self) -> list[Replica]:
        """Return the replicas that clients reach."""
        return [replica for replica in self.replicas if replica.handler is not None]

    def record_disturbance(
        self, seconds: float, unheard_seconds: float = 0.0, *, leaves_claims: bool = True
    ) -> None:
        """Have the oracle be lenient for so long.

        Args:
            unheard_seconds: for which a replica may not hear what others serve.
            leaves_claims: until claims that nobody releases have expired, too.
        """
        now, oracle = self.events.now, self.oracle
        self.heard_at = max(self.heard_at, now + seconds + HEARD_SECONDS)
        over = now + seconds + (CLAIM_SECONDS if leaves_claims else HEARD_SECONDS)
        oracle.disturbed_until = max(oracle.disturbed_until, over)
        oracle.unheard_until = max(oracle.unheard_until, now + unheard_seconds)

    def _record(self, infra_env: InfraEnvState) -> None:
        """Have the oracle know the state of an infra-env."""
        now, oracle = self.events.now, self.oracle
        oracle.texts[infra_env.id].append((now, infra_env.text))
        for (id_, token), timeline in oracle.permitted.items():
            if id_ == infra_env.id and token != infra_env.token:
                timeline.append((now, False))
        current = oracle.permitted[infra_env.id, infra_env.token] or [(0.0, False)]
        oracle.permitted[infra_env.id, infra_env.token] = [*current, (now, infra_env.refusal is None)]

    def _make_client(self, number: int, infra_env: InfraEnvState) -> SimulatedClient:
        return SimulatedClient(
            name=f"client {number}",
            address=f"192.0.2.{number}",
            infra_env=infra_env.id,
            token=infra_env.token,
            size=len(self.scenery.bases[0].content),
            machine=self.machine,
            oracle=self.oracle,
            is_complete=number % 3 != 1,
        )

    def _start_replica(self, number: int, before: Replica | None = None) -> Replica:
        machine = Machine(self.events, f"replica {number}")
        connection = Connection(self.scenery.server, machine, self.chance, is_notified=self.has_notifications)
        if before is not None:
            connection.link, connection.until = before.connection.link, before.connection.until
            machine.clock_step = before.machine.clock_step
        replica, url = Replica.make(machine, connection), f"{self.scenery.settings.database.url}/{number}"
        self.databases[url] = ReplicaDatabase(connection)
        settings = attrs.evolve(
            self.scenery.settings, database=attrs.evolve(self.scenery.settings.database, url=url)
        )
        assisted = SimulatedAssisted(self.assisted, machine)
        started = machine.run(replica.start, settings, assisted, self.catalog)
        started.addErrback(lambda failure: self.oracle.fail(failure.getTraceback()))
        return replica

    def restart(self, number: int) -> None:
        """Start another process in the place of one that has stopped, or was killed."""
        self.replicas[number].kill()
        self.replicas[number] = self._start_replica(number, self.replicas[number])

    def _notify(self, payload: str) -> None:
        for database in self.databases.values():
            if database.listener is not None:
                database.listener.notify(payload)

    # The end.

    def _end(self) -> None:
        """Check that each replica serves the newest config, stops, and leaves no claim."""
        self.events.record("-- the end")
        self._heal()
        for infra_env in self.assisted.infra_envs.values():
            infra_env.text += 1
            if self.chance.random() < 0.5:
                infra_env.refusal = None
            self._record(infra_env)
        calm = max(self.assisted.calm_at, self.heard_at, self.events.now + ABORT_SECONDS + 1)
        self.run_for(calm - self.events.now)
        while self.scenery.server.count_claims() and self.events.now < self.oracle.disturbed_until:
            self.run_for(1)
            if self.oracle.faults:  # time does not pass any more
                return
        self.run_for(TTL_SECONDS)  # what waited for a claim is asked now
        for replica in self.replicas:
            for client in self.clients:
                self.spawn(self._read_at_the_end(client, replica))
            self.run_for(TTL_SECONDS / 2)
        for replica in [] if self.oracle.faults else self.replicas:
            stopped = replica.stop()
            self.run_for(3)
            if not stopped.called:
                self.oracle.fail(f"{replica.machine.name} does not stop")
        self._check_tables()

    def _heal(self) -> None:
        """End all faults."""
        # After a failure the product serves what it knows, and asks again as late as after a refusal.
        forgotten = TIMEOUT_SECONDS + REFUSED_SECONDS + 1
        self.assisted.calm_at = min(self.assisted.until, self.events.now) + forgotten
        self.assisted.until = 0.0
        self._record_mood(is_well=True)
        for number, replica in enumerate(self.replicas):
            replica.connection.until = 0.0
            if replica.handler is None and (replica.machine.is_dead or replica.is_stopping):
                self.restart(number)
            replica.machine.resume()
        for client in self.clients:
            client.may_break = False

    async def _read_at_the_end(self, client: SimulatedClient, replica: Replica) -> None:
        infra_env = self.assisted.infra_envs[client.infra_env]
        may_read = infra_env.token == client.token and infra_env.refusal is None
        reply = await client.send(replica, client.ask_whole())
        if reply is not None and reply.status == 503:
            await deferLater(self.machine, 1)
            reply = await client.send(replica, client.ask_whole())
        status = None if reply is None else reply.status
        if (status == 200) is not may_read or status is None or status >= 500:
            self.oracle.fail(f"{client.name} gets {status} in the end")
        elif reply is not None and may_read:
            texts = self.oracle.texts_of(client.infra_env, reply.fields["ETag"])
            if texts != {infra_env.text}:
                self.oracle.fail(f"{client.name} gets text {texts} in the end, not {infra_env.text}")

    def _check_tables(self) -> None:
        server = self.scenery.server
        if held := server.count_claims():
            self.oracle.fail(f"{held} claims are held in the end")
        limits = {"claims": 20, "mounts": 40, "snapshots": 20 * 16, "payloads": 20 * 16}
        for table, limit in limits.items():
            if (count := server.count(table)) > limit:
                self.oracle.fail(f"{count} rows are left in {table}")

    def _record_mood(self, *, is_well: bool) -> None:
        self.oracle.moods.append((self.events.now, is_well))

    # What happens.

    def change(self, which: float, *_: float) -> None:
        """An infra-env gets another text."""
        infra_env = self._pick_infra_env(which)
        infra_env.text += 1
        self._record(infra_env)

    def refuse(self, which: float, how: float, *_: float) -> None:
        """An infra-env is refused to everybody."""
        infra_env = self._pick_infra_env(which)
        infra_env.refusal = _pick(REFUSALS, how)
        self._record(infra_env)

    def permit(self, which: float, *_: float) -> None:
        """An infra-env is not refused any more."""
        infra_env = self._pick_infra_env(which)
        infra_env.refusal = None
        self._record(infra_env)

    def rotate(self, which: float, how: float, seconds: float, *_: float) -> None:
        """All but one of the clients of an infra-env use another token, which it gets at once or soon."""
        infra_env = self._pick_infra_env(which)
        token = f"token-{infra_env.id[:2]}-{self.events.now:.0f}"
        clients = [client for client in self.clients if client.infra_env == infra_env.id]
        late = _pick(clients, how)
        for client in clients:
            if client is not late:
                client.use_token(token)
                self.spawn(client.send(_pick(self.replicas, how), client.ask_whole("HEAD")))
        self.machine.callLater(max(0.0, 4 * seconds - 2), self._grant, infra_env, token)

    def _grant(self, infra_env: InfraEnvState, token: str) -> None:
        infra_env.token = token
        self._record(infra_env)

    def intrude(self, which: float, whose: float, *_: float) -> None:
        """A client tries the token of another infra-env."""
        _pick(self.clients, which).use_token(_pick(self.clients, whose).token)

    def obey(self, which: float, *_: float) -> None:
        """A client uses the token that is good."""
        client = _pick(self.clients, which)
        client.use_token(self.assisted.infra_envs[client.infra_env].token)

    def trouble(self, which: float, seconds: float, *_: float) -> None:
        """assisted-service does not behave for a while."""
        self._disturb_assisted(_pick(tuple(Mood)[1:], which), 1 + 39 * seconds**2)

    def _disturb_assisted(self, mood: Mood, seconds: float) -> None:
        self.assisted.mood, self.assisted.until = mood, self.events.now + seconds
        self.events.record(f"assisted is {self.assisted.mood.value} until {self.assisted.until}")
        self._record_mood(is_well=False)
        self.machine.callLater(self.assisted.until - self.events.now + 35, self._recover)

    def _recover(self) -> None:
        if self.events.now > self.assisted.until + 34:
            self._record_mood(is_well=True)

    def kill(self, which: float, seconds: float, *_: float) -> None:
        """A replica is killed while it has much to do, and started again."""
        number = int(which * len(self.replicas))
        replica = self.replicas[number]
        if replica.handler is not None:
            for client in self.clients:
                self.spawn(client.send(replica, client.ask_whole()))
            self.run_for(0.3 * seconds)
            replica.kill()
            self.record_disturbance(10 * seconds)
            self.machine.callLater(10 * seconds, self.restart, number)

    def stop(self, which: float, *_: float) -> None:
        """A replica stops, and is started again."""
        number = int(which * len(self.replicas))
        replica = self.replicas[number]
        if replica.handler is not None:
            self.record_disturbance(
                0, leaves_claims=replica.connection.until + HEARD_SECONDS > self.events.now
            )
            replica.stop().addCallback(lambda _: self.restart(number))

    def pause(self, which: float, seconds: float, *_: float) -> None:
        """A replica does not get a processor for a while."""
        machine, length = _pick(self.replicas, which).machine, 60 * seconds**3
        if machine.paused_since is None:
            machine.pause()
            self.oracle.longest_pause = max(self.oracle.longest_pause, length)
            self.record_disturbance(length, length + HEARD_SECONDS)
            self.machine.callLater(length, machine.resume)

    def disconnect(self, which: float, how: float, seconds: float, *_: float) -> None:
        """A replica does not reach the database as it should for a while."""
        self._disturb([_pick(self.replicas, which)], how, seconds)

    def lose_database(self, how: float, seconds: float, *_: float) -> None:
        """No replica does."""
        self._disturb(self.replicas, how, seconds)

    def _disturb(self, replicas: Sequence[Replica], how: float, seconds: float) -> None:
        link, length = _pick(tuple(Link)[1:], how), 1 + 30 * seconds**2
        self.events.record(f"{link.value} for {length:.1f} s")
        # A transaction that was given up may be carried out, and then nothing releases its claim.
        leaves_claims = link in {Link.HANGING, Link.SLOW}
        self.record_disturbance(length, length + HEARD_SECONDS, leaves_claims=leaves_claims)
        for replica in replicas:
            replica.connection.disturb(link, length)

    def step_clock(self, how: float, which: float, step: float, *_: float) -> None:
        """The clocks of the database and of a replica are set; claims last longer if that is back."""
        _pick(self.replicas, which).machine.clock_step += (step - 0.5) * 7200
        self.scenery.server.clock_step += (how - 0.5) * 100
        self.record_disturbance(60, WINDOW_SECONDS + HEARD_SECONDS)

    def replace_base(self, *_: float) -> None:
        """Another base image has the name from now on."""
        superseded = self.catalog.images[self.catalog.current]
        self.catalog.current = 1 - self.catalog.current
        for replica in self.running():
            if replica.images is not None:
                replica.images.images.retention.supersede(superseded)

    # What clients do.

    def read_whole(self, which: float, where: float, *_: float) -> None:
        """A client reads the whole, and goes on at another replica where a connection broke."""
        self.spawn(self._read_whole(_pick(self.clients, which), int(where * len(self.replicas))))

    async def _read_whole(self, client: SimulatedClient, where: int) -> None:
        content, etag, token = b"", "", client.token
        for number in range(where, where + 5):
            asked = client.ask_whole()
            if content:
                asked = client.ask_range(len(content), client.size, ("if-range", etag))
            reply = await client.send(self.replicas[number % len(self.replicas)], asked)
            if reply is None or reply.status not in CONTENT or client.token != token:
                return
            content, etag = (content if reply.status == 206 else b"") + reply.content, reply.fields["ETag"]
            if len(content) == client.size:
                self.oracle.check_bytes(client.infra_env, token, etag, 0, content)
                return

    def rush(self, which: float, *_: float) -> None:
        """A client asks all replicas for the head at once."""
        client = _pick(self.clients, which)
        for replica in self.replicas:
            self.spawn(client.send(replica, client.ask_whole("HEAD")))

    def ask_head(self, which: float, where: float, *_: float) -> None:
        """A client asks for the head."""
        client = _pick(self.clients, which)
        self.spawn(client.send(_pick(self.replicas, where), client.ask_whole("HEAD")))

    def read_named(self, which: float, where: float, how: float, start: float, length: float) -> None:
        """A client goes on with what an entity tag names."""
        client = _pick(self.clients, which)
        if client.etags:
            name = _pick(("if-range", "if-range", "if-match"), how)
            validator = name, _pick(client.etags, where)
            asked = client.ask_range(*self._range(start, length), validator)
            self.spawn(client.send(_pick(self.replicas, where), asked))

    def ask_changed(self, which: float, where: float, *_: float) -> None:
        """A client asks whether what it has is current."""
        client = _pick(self.clients, which)
        if client.etags:
            asked = client.ask_whole(validator=("if-none-match", client.etags[-1]))
            self.spawn(client.send(_pick(self.replicas, where), asked))

    def read_next(self, which: float, where: float, start: float, length: float, *_: float) -> None:
        """A client reads a range, wherever it is."""
        client = _pick(self.clients, which)
        self.spawn(client.send(_pick(self.replicas, where), client.ask_range(*self._range(start, length))))

    def mount(self, which: float, where: float, wander: float, start: float, pace: float) -> None:
        """A client reads an image range by range, at one replica or at several."""
        client = _pick(self.clients, which)
        self.spawn(self._mount(client, int(where * 97), wander, start, pace))

    async def _mount(
        self, client: SimulatedClient, where: int, wander: float, start: float, pace: float
    ) -> None:
        await client.send(self.replicas[where % len(self.replicas)], client.ask_range(0, 34816))
        for _ in range(8):
            await deferLater(self.machine, 3 * pace**3)
            if self.chance.random() < wander:
                where += 1
            begin = int(start * PADDING_BYTES) + 40000 + self.chance.randrange(8192)
            replica = self.replicas[where % len(self.replicas)]
            await client.send(replica, client.ask_range(begin, begin + 1 + self.chance.randrange(20000)))

    def stream(self, which: float, where: float, start: float, *_: float) -> None:
        """A client reads range after range at one replica, which has to wait for few of them."""
        client = _pick(self.clients, which)
        self.spawn(self._stream(client, _pick(self.replicas, where), int(start * PADDING_BYTES) + 40000))

    async def _stream(self, client: SimulatedClient, replica: Replica, start: int) -> None:
        await client.send(replica, client.ask_range(0, 34816))
        since, awaited = self.events.now, 0
        for number in range(8):
            begin = start + 1000 * number
            asked = client.ask_range(begin, begin + 1000)
            reply = await client.send(replica, asked)
            if asked.mount is None or reply is None or reply.status != 206:
                return
            awaited += reply.was_awaited
        if awaited > MAX_AWAITED and self.oracle.is_calm(since):
            self.oracle.fail(f"{client.name} had to wait for {awaited} ranges of 8")

    def meet(self, which: float, where: float, seconds: float, start: float, *_: float) -> None:
        """An infra-env changes; when one replica has learned that, a new client reads it at all of them."""
        infra_env = self._pick_infra_env(which)
        infra_env.text += 1
        self._record(infra_env)
        client = self._make_client(next(self._next_client), infra_env)
        self.spawn(self._meet(client, _pick(self.replicas, where), 6 * seconds, int(start * PADDING_BYTES)))

    def meet_slowly(self, which: float, where: float, seconds: float, start: float, *_: float) -> None:
        """The same while assisted-service is slow."""
        self._disturb_assisted(Mood.SLOW, 10)
        self.meet(which, where, seconds, start)

    async def _meet(self, client: SimulatedClient, first: Replica, after: float, start: int) -> None:
        await deferLater(self.machine, after)
        await client.send(first, client.ask_whole("HEAD"))
        asked = client.ask_range(start + 70000, start + 74000)
        sent = [Deferred.fromCoroutine(self._send_late(client, replica, asked)) for replica in self.replicas]
        replies = await DeferredList(sent, fireOnOneErrback=True)
        etags = {reply.fields["ETag"] for _, reply in replies if reply is not None and reply.status == 206}
        if len(etags) > 1 and self.events.now > self.oracle.unheard_until:
            self.oracle.fail(f"{client.name} gets parts of {len(etags)} versions at once")

    async def _send_late(self, client: SimulatedClient, replica: Replica, asked: Asked) -> Reply | None:
        await deferLater(self.machine, 1.2 * self.chance.random() ** 2)
        return await client.send(replica, asked)

    def come_back(self, which: float, where: float, start: float, *_: float) -> None:
        """A client reads a version that is superseded, begins anew at another replica, and comes back."""
        client, number = _pick(self.clients, which), int(where * len(self.replicas))
        replicas = self.replicas[number], self.replicas[number - 1]
        self.spawn(self._come_back(client, *replicas, int(start * PADDING_BYTES) + 66000))

    async def _come_back(self, client: SimulatedClient, first: Replica, second: Replica, start: int) -> None:
        await client.send(first, client.ask_range(0, 34816))
        infra_env = self.assisted.infra_envs[client.infra_env]
        infra_env.text += 1
        self._record(infra_env)
        for _ in range(8):
            await deferLater(self.machine, 1.6 * self.chance.random())
            await client.send(first, client.ask_range(start, start + 500))
        for _ in range(2):
            await client.send(first, client.ask_range(start, start + 500))
        await client.send(second, client.ask_whole())
        await client.send(first, client.ask_range(start, start + 500))

    def begin_unsaved(self, which: float, where: float, how: float, seconds: float, start: float) -> None:
        """A client begins a new version at a replica that cannot store its mount, and goes on at another."""
        client, number = _pick(self.clients, which), int(where * len(self.replicas))
        first, second = self.replicas[number], self.replicas[number - 1]
        disturb = partial(self._disturb, [first], how, seconds / 4)
        self.spawn(self._begin_unsaved(client, first, second, disturb, int(start * PADDING_BYTES) + 66000))

    async def _begin_unsaved(
        self,
        client: SimulatedClient,
        first: Replica,
        second: Replica,
        disturb: Callable[[], None],
        start: int,
    ) -> None:
        await client.send(second, client.ask_range(0, 34816))
        infra_env = self.assisted.infra_envs[client.infra_env]
        infra_env.text += 1
        self._record(infra_env)
        await deferLater(self.machine, TTL_SECONDS)
        disturb()
        await client.send(first, client.ask_whole())
        while self.events.now <= self.oracle.unheard_until:
            await client.send(second, client.ask_range(start, start + 500))
            await deferLater(self.machine, 1.6 * self.chance.random())
        for replica in (first, second) * 3:
            await client.send(replica, client.ask_range(start, start + 500))

    def wait(self, seconds: float, *_: float) -> None:
        """Nothing happens for a while."""
        self.run_for(30 * seconds)

    def _range(self, start: float, length: float) -> tuple[int, int]:
        size, area = self.clients[0].size, self.scenery.bases[0].area
        begin = int(area - 2000 + start * 4000) if start < 0.5 else int(start * size)
        begin = min(begin, size - 1)
        return begin, min(size, begin + 1 + int(length * 12000))

    def _pick_infra_env(self, which: float) -> InfraEnvState:
        return self.assisted.infra_envs[INFRA_ENVS[which > 0.7]]


def _pick(values: Sequence[T], draw: float) -> T:
    return values[int(draw * len(values))]
