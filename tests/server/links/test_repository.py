"""Links in real databases: SQLite and PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import sqlalchemy as sa

from image_service.core.errors import StoreFailed, Unavailable
from image_service.server.links.repository import LinkRepository, StoredLink
from image_service.server.snapshots.build_snapshots import open_repository
from image_service.server.snapshots.storage.repository import KEPT_CREDENTIALS, KEPT_GENERATIONS, Owner
from image_service.server.snapshots.storage.sql_repository import SqlRepository, StoreLimits
from image_service.server.snapshots.storage.sql_statements import LINKS
from image_service.settings.upstream import SnapshotSettings
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.snapshots.repositories import Threads, postgresql_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

T = 1_700_000_000.0
KEY = b"k" * 32
LINK = StoredLink("0123456789abcdef", b"d" * 32, b"description", b"sealed", T + 100)


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    if request.param == "postgresql":
        request.getfixturevalue("postgres")  # may skip the test, which a fixture with a coroutine must not
    return str(request.param)


@async_fixture
async def snapshots(
    request: pytest.FixtureRequest, reactor: EPollReactor, tmp_path: Path, dialect: str
) -> AsyncIterator[SqlRepository]:
    threads = Threads(reactor, 2)
    if dialect == "sqlite":
        repository = open_repository(tmp_path, threads, threads, SnapshotSettings())
    else:
        database = postgresql_database(request.getfixturevalue("postgres").create_database())
        repository = SqlRepository(database, threads, threads, StoreLimits(1024**3, 60.0), lambda: T)
    yield repository
    await repository.close()
    threads.stop()


@pytest.fixture
def links(snapshots: SqlRepository) -> LinkRepository:
    return LinkRepository(snapshots)


@ensure_deferred
async def test_link_is_found_by_the_digest_of_its_code(links: LinkRepository) -> None:
    await links.add(LINK, None)
    assert await links.find(LINK.digest) == LINK
    assert await links.find(b"e" * 32) is None


@pytest.mark.parametrize("dialect", ["sqlite"])  # PostgreSQL's columns take values of their types only
@pytest.mark.parametrize(
    ("column", "value", "read"),
    [
        ("id", "x'00ff'", str(b"\0\xff")),
        ("description", "'text'", b""),
        ("sealed", "7", b""),
        ("expires_at", "'text'", 0.0),
        ("expires_at", "9e99", 0.0),
    ],
)
@ensure_deferred
async def test_value_of_a_wrong_type_hides_no_other_link(
    snapshots: SqlRepository, links: LinkRepository, column: str, value: str, read: Any
) -> None:
    other = attrs.evolve(LINK, id="other", digest=b"e" * 32)
    await links.add(LINK, None)
    await links.add(other, None)
    values: dict[str, Any] = {column: sa.literal_column(value)}
    change = sa.update(LINKS).where(LINKS.c.id == LINK.id).values(values)
    await snapshots.write(lambda connection: connection.execute(change).close())
    damaged = attrs.evolve(LINK, **{column: read})
    assert {link.id: link for link in await links.list_usable(T)} == {damaged.id: damaged, "other": other}
    assert await links.find(LINK.digest) == damaged


@ensure_deferred
async def test_ended_link_keeps_its_digest_only(links: LinkRepository) -> None:
    await links.add(LINK, None)
    assert await links.end(LINK.id) == LINK.digest
    assert await links.end(LINK.id) is None
    assert await links.end("unknown") is None
    assert await links.find(LINK.digest) == attrs.evolve(LINK, sealed=None)
    assert await links.list_usable(T) == []


@ensure_deferred
async def test_usable_links_are_listed_by_their_end(links: LinkRepository) -> None:
    later, expired = (
        attrs.evolve(LINK, id=name, digest=name.encode(), expires_at=T + seconds)
        for name, seconds in (("later", 200), ("expired", 0))
    )
    for link in (later, expired, LINK):
        await links.add(link, None)
    assert await links.list_usable(T) == [LINK, later]


@ensure_deferred
async def test_expired_links_are_erased_and_then_removed(links: LinkRepository) -> None:
    await links.add(LINK, (KEY, 1))
    await links.remove_expired(T + 99, 1000)
    assert await links.find(LINK.digest) == LINK
    await links.remove_expired(T + 100, 1000)
    assert await links.find(LINK.digest) == attrs.evolve(LINK, sealed=None)
    await links.remove_expired(T + 1100, 1000)
    assert await links.find(LINK.digest) is None


async def generations(snapshots: SqlRepository, *numbers: int) -> list[int]:
    return [number for number in numbers if await snapshots.load(KEY, number) is not None]


@ensure_deferred
async def test_pinned_snapshot_is_kept_while_its_link_can_be_used(
    snapshots: SqlRepository, links: LinkRepository
) -> None:
    last = KEPT_GENERATIONS + 3
    for number in range(1, last + 1):
        await snapshots.add(KEY, number, b"sealed", T)
        if number == 2:
            await links.add(LINK, (KEY, number))
    assert await generations(snapshots, 1, 2, 3, 4) == [2, 4]
    await snapshots.remove_unused(T + 1, T + 1)
    assert await generations(snapshots, 2, last) == [2, last]
    newest = await snapshots.find_newest(KEY)
    assert newest is not None
    assert newest.generation == last
    await links.end(LINK.id)
    await snapshots.remove_unused(T + 1, T + 1)
    assert await generations(snapshots, 2, last) == []


@ensure_deferred
async def test_pinned_snapshot_outlives_those_of_many_credentials(
    snapshots: SqlRepository, links: LinkRepository
) -> None:
    await snapshots.add(KEY, 1, b"sealed", T - 100, Owner(b"infra-env", b"first"))
    await links.add(LINK, (KEY, 1))
    for number in range(KEPT_CREDENTIALS + 1):
        key = number.to_bytes(32, "big")
        await snapshots.add(key, 1, b"sealed", T, Owner(b"infra-env", key))
    assert await generations(snapshots, 1) == [1]


@ensure_deferred
async def test_refused_and_changed_snapshot_is_removed_for_links_too(
    snapshots: SqlRepository, links: LinkRepository
) -> None:
    await snapshots.add(KEY, 1, b"sealed", T)
    await links.add(LINK, (KEY, 1))
    await snapshots.end(KEY, T)
    assert await generations(snapshots, 1) == []


@ensure_deferred
async def test_failure_of_the_database_is_temporary() -> None:
    class Failing:
        async def read(self, _: object) -> object:
            raise StoreFailed("it is away")

        write = read

    links = LinkRepository(Failing())  # type: ignore[arg-type] # a double
    with pytest.raises(Unavailable) as error:
        await links.find(b"d")
    assert error.value.retry_after_seconds is not None
