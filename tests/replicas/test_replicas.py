"""Three replicas that share a database serve one image to each client, whatever fails."""

from __future__ import annotations

import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from secrets import token_hex
from typing import TYPE_CHECKING

import attrs
import psycopg
import pytest

from tests.acceptance.service import SERVE
from tests.acceptance.tenants import wait_for
from tests.replicas.balancer import Mode
from tests.replicas.secrets_search import files, find, rows
from tests.replicas.site import TTL_SECONDS, Site, path_of, running_site

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.replicas.infra_envs import InfraEnv
    from tests.replicas.mount import Mount
    from tests.replicas.replica import Replica

pytestmark = pytest.mark.acceptance

PROMISED_SECONDS = 2
"""After its TTL, a changed answer is served to newcomers by all replicas within this."""
REFUSAL_SECONDS = 3
CLAIM_SECONDS = 40
LATER_RELEASE = (sys.executable, "-m", "tests.replicas.later_release", "serve")
_TIMEOUT_SECONDS = 60
_AT_ONCE = threading.Event()
_AT_ONCE.set()
_PROGRESS = 5
_SHOWN = 4000
_TOLERANCE_SECONDS = 0.2
"""The double notes the begin of an answer; the replica that asked counts its TTL from the end."""


@attrs.frozen
class Size:
    """How much is read, and how long the database is away."""

    mounts: int
    ranges: int
    pause_seconds: float
    away_seconds: float
    modes: Sequence[Mode] = tuple(Mode)


SIZES = [
    pytest.param(Size(4, 40, 0.1, 3), id="small"),
    *(
        pytest.param(Size(50, 3000, 0, 20, [mode]), marks=pytest.mark.soak, id=f"full-{mode.value}")
        for mode in Mode
    ),
]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site() as running:
        yield running
        for replica in running.replicas:
            replica.wait_until_healthy()
            _, found, trace = replica.service.output.decode().partition("Traceback")
            if found:
                pytest.fail(trace[:_SHOWN], pytrace=False)


@attrs.define
class Reading:
    """Mounts that read meanwhile.

    Attributes:
        away: from when to when the database was away.
        unclaimed: how often replicas that have ended have asked without a claim, as their metrics say.
    """

    mounts: Sequence[Mount]
    away: list[tuple[float, float]] = attrs.field(factory=list)
    unclaimed: float = 0

    def wait_for_progress(self) -> None:
        """Wait until each mount has read further ranges."""
        targets = [(mount, mount.read + _PROGRESS) for mount in self.mounts]
        wait_for(lambda: all(mount.read >= target for mount, target in targets))

    @contextmanager
    def without_database(self) -> Iterator[None]:
        """The database is away for a replica, or for all, until the block ends and a TTL is over."""
        began = time.monotonic()
        yield
        self.wait_for_progress()
        time.sleep(TTL_SECONDS)  # what was not stored meanwhile is asked for again
        self.away.append((began, time.monotonic()))

    def count_unclaimed(self, replica: Replica) -> None:
        """Count what a replica has asked because the database was too slow for it."""
        self.unclaimed += replica.service.metrics()['claims_total{outcome="unavailable"}']

    def was_away(self, at: float) -> bool:
        """Return True if the database was away at an instant."""
        return any(began <= at <= ended for began, ended in self.away)


@contextmanager
def reading(mounts: Sequence[Mount], size: Size) -> Iterator[Reading]:
    """Read until the block ends, and until each mount has read its ranges."""
    finished = threading.Event()
    with ThreadPoolExecutor(len(mounts)) as pool:
        running = [
            pool.submit(mount.read_ranges, size.ranges, finished, size.pause_seconds) for mount in mounts
        ]
        try:
            yield Reading(mounts)
        finally:
            finished.set()
        for each in running:
            each.result()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", SIZES)
def test_mount_reads_one_image_whatever_fails(site: Site, size: Size) -> None:
    infra_envs = [site.register() for _ in range(size.mounts)]
    modes = [size.modes[number % len(size.modes)] for number in range(size.mounts)]
    mounts = [site.mount(each, mode) for each, mode in zip(infra_envs, modes, strict=True)]
    for mount in mounts:
        mount.start()
    with reading(mounts, size) as meanwhile:
        meanwhile.wait_for_progress()
        kill_and_restart(site, meanwhile)
        update_and_return(site, meanwhile)
        stop_and_crash_database(site, meanwhile, size.away_seconds)
        cut_one_from_database(site, meanwhile)
    for mount, infra_env in zip(mounts, infra_envs, strict=True):
        mount.check(site.base, infra_env.configs)
        assert len(infra_env.answers) > 1
    for replica in site.replicas:
        meanwhile.count_unclaimed(replica)
    assert sum(early_rounds(infra_env, meanwhile) for infra_env in infra_envs) <= meanwhile.unclaimed


def kill_and_restart(site: Site, meanwhile: Reading) -> None:
    killed = site.replicas[0]
    meanwhile.count_unclaimed(killed)
    killed.kill()
    meanwhile.wait_for_progress()
    killed.start()
    _use_again(site, killed, meanwhile)


def update_and_return(site: Site, meanwhile: Reading) -> None:
    """Replace a replica by a later release, and that by this release."""
    replaced = site.replicas[1]
    for command in (LATER_RELEASE, SERVE):
        site.balancer.drain(replaced.number)
        meanwhile.wait_for_progress()
        meanwhile.count_unclaimed(replaced)
        replaced.stop()
        replaced.start(command)
        site.balancer.set_ready(replaced.number)
        _use_again(site, replaced, meanwhile)


def stop_and_crash_database(site: Site, meanwhile: Reading, away_seconds: float) -> None:
    with meanwhile.without_database():
        site.postgres.stop()
        began = time.monotonic()
        wait_for(lambda: time.monotonic() > began + away_seconds)
        meanwhile.wait_for_progress()
        site.postgres.start()
    with meanwhile.without_database():
        site.postgres.stop("immediate")
        site.postgres.start()


def cut_one_from_database(site: Site, meanwhile: Reading) -> None:
    cut = site.replicas[2]
    with meanwhile.without_database():
        cut.database.cut()
        meanwhile.wait_for_progress()
        cut.database.mend()


def _use_again(site: Site, replica: Replica, meanwhile: Reading) -> None:
    replica.wait_until_healthy()
    site.balancer.wait_until_up(replica.number)
    meanwhile.wait_for_progress()


def early_rounds(infra_env: InfraEnv, meanwhile: Reading) -> int:
    """Count the answers within the TTL of the one before, while the replicas had the database."""
    times = [at for at, _ in infra_env.answers]
    return sum(
        later - earlier < TTL_SECONDS - _TOLERANCE_SECONDS and not meanwhile.was_away(later)
        for earlier, later in pairwise(times)
    )


def test_newcomers_everywhere_get_a_change_and_a_mount_keeps_its_image(site: Site) -> None:
    infra_env = site.register(name="before")
    first, *others = site.replicas
    mount = site.client(infra_env, first)
    mount.start()
    before = infra_env.configs
    infra_env.name = "after"
    time.sleep(TTL_SECONDS + PROMISED_SECONDS)  # the promise itself; a slow machine only waits longer
    for number, replica in enumerate(site.replicas, 1):
        with closing(site.client(infra_env, replica, number)) as newcomer:
            newcomer.start()
            newcomer.check(site.base, infra_env.configs - before)
    for replica in (first, *others):
        mount.move_to(replica.host)
        mount.read_ranges(20, _AT_ONCE)
    mount.check(site.base, before)


@pytest.mark.parametrize("how", ["stopped", "hanging"])
def test_new_infra_env_is_refused_in_time_and_mounts_go_on_without_the_database(site: Site, how: str) -> None:
    infra_env = site.register()
    mounts = [site.client(infra_env, replica) for replica in site.replicas]
    for mount in mounts:
        mount.start()
    with without_database(site, how):
        _check_refusals(site)
        time.sleep(TTL_SECONDS)  # so that each has to validate its snapshot without the database
        for mount in mounts:
            mount.read_ranges(20, _AT_ONCE)
    for replica in site.replicas:
        wait_for(lambda: not _names_database(replica))  # noqa: B023 - called at once
        with closing(site.client(site.register(), replica)) as late:
            late.start()


@contextmanager
def without_database(site: Site, how: str) -> Iterator[None]:
    """Take the database away from all replicas until the block ends."""
    if how == "stopped":
        site.postgres.stop("immediate")
        yield
        site.postgres.start()
    else:
        for replica in site.replicas:
            replica.database.hang()
        yield
        for replica in site.replicas:
            replica.database.mend()


def _check_refusals(site: Site) -> None:
    unknown = site.register()
    for replica in site.replicas:
        with closing(site.client(unknown, replica, 1)) as client:
            began = time.monotonic()
            answer = client.get()
            seconds = time.monotonic() - began
        assert answer.status == 503, answer
        assert int(answer.fields["retry-after"]) > 0
        assert seconds < REFUSAL_SECONDS
        wait_for(partial(_names_database, replica))


def _names_database(replica: Replica) -> bool:
    answer = replica.service.get("/health")
    assert answer.status == 200
    return b"database: unreachable" in answer.body


def test_statement_is_the_same_from_each_replica_and_after_a_restart(site: Site) -> None:
    path = f"{path_of(site.register())}.intoto.json"
    bundles = [replica.service.get_image(path).body for replica in site.replicas]
    restarted = site.replicas[0]
    restarted.stop()
    restarted.start()
    restarted.wait_until_healthy()
    bundles.append(restarted.service.get_image(path).body)
    assert b"dsseEnvelope" in bundles[0]
    assert len(set(bundles)) == 1


def test_abandoned_claim_is_taken_over(site: Site) -> None:
    killed, other, _ = site.replicas
    infra_env = site.register()
    infra_env.delay_seconds = 1000
    with closing(site.client(infra_env, killed)) as lost, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(lost.get)
        assert infra_env.asked.wait(_TIMEOUT_SECONDS)
        killed.kill()
        asking.exception(_TIMEOUT_SECONDS)
    killed.start()
    infra_env.delay_seconds = 0
    with psycopg.connect(site.dsn, autocommit=True) as database:
        ((expires_in,),) = database.execute(_EXPIRY).fetchall()
        assert expires_in <= CLAIM_SECONDS
        database.execute(_AGE, [CLAIM_SECONDS - 1])
    with closing(site.client(infra_env, other)) as newcomer:
        newcomer.start()
    assert len(infra_env.answers) == 2
    claims = {
        name: count for name, count in other.service.metrics().items() if name.startswith("claims_total")
    }
    assert claims['claims_total{outcome="taken-over"}'] == 1, claims
    killed.wait_until_healthy()


_EXPIRY = "SELECT extract(epoch FROM max(expires_at) - clock_timestamp()) FROM claims"
_AGE = "UPDATE claims SET expires_at = expires_at - make_interval(secs => %s)"


def test_no_secret_is_in_rows_wal_files_and_output(site: Site) -> None:
    secrets = {place: f"{place}-{token_hex(20)}" for place in ("name", "api_key", "canary")}
    infra_env = site.register(name=secrets["name"])
    for number, replica in enumerate(site.replicas):
        with closing(site.client(infra_env, replica, number)) as client:
            client.path += f"?api_key={secrets['api_key']}"
            client.start()
            assert client.etag
    (body,) = infra_env.configs
    token = re.search(rb"PULL_SECRET_TOKEN=([\w.-]+)", body)
    assert token is not None
    with psycopg.connect(site.dsn, autocommit=True) as database:
        database.execute("CREATE TABLE canary AS SELECT %s AS value", [secrets["canary"]])
        database.execute("CHECKPOINT")
    searched = [*rows(site.dsn), *files(site.postgres.directory)]
    searched += [place for replica in site.replicas for place in files(replica.directory)]
    canary = {place for place, _ in find([secrets["canary"].encode()], searched)}
    assert "canary" in canary
    assert any("pg_wal" in place for place in canary)
    assert any("/base/" in place for place in canary)
    put_in = [secrets["name"].encode(), secrets["api_key"].encode(), token[1]]
    assert find(put_in, searched) == []
    assert find([(site.directory / "secret").read_bytes().strip()], searched) == []


def test_replica_with_another_secret_ends_at_start_and_names_the_variable(site: Site) -> None:
    replica = site.replicas[1]
    replica.stop()
    before = len(replica.service.stdout)
    other = replica.directory / "other-secret"
    other.write_text(f"{token_hex(32)}\n")
    replica.start(INSTANCE_SECRET_FILE=str(other))
    assert replica.wait() == 78
    assert b"INSTANCE_SECRET_FILE" in replica.service.stdout[before:]
    replica.start()
    replica.wait_until_healthy()


@pytest.mark.soak
def test_replica_that_starts_without_the_database_listens_and_becomes_healthy_with_it(site: Site) -> None:
    replica = site.replicas[2]
    for take_away in (replica.database.cut, replica.database.hang):
        replica.stop()
        take_away()
        replica.start()
        wait_for(lambda: _status(replica, "/live") == 200)
        assert _status(replica, "/health") == 503
        replica.database.mend()
        replica.wait_until_healthy()
        with closing(site.client(site.register(), replica)) as client:
            client.start()


def _status(replica: Replica, path: str) -> int | None:
    try:
        return replica.service.get(path).status
    except ConnectionRefusedError:
        return None
