from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from image_service.coreos.kargs import KernelArgument, Operation
from image_service.errors import NotFound
from image_service.images.reference import Kind
from image_service.standalone.infra_env import InfraEnv
from image_service.standalone.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
FULL = {
    "name": "a",
    "openshift_version": "4.20",
    "image_type": Kind.MINIMAL_ISO,
    "ignition_config_override": '{"ä":"🙂"}',
    "kernel_arguments": tuple(KernelArgument(operation, f"a=1={operation.value}") for operation in Operation),
    "network_keyfiles": {"b": "2", "a": "1\n"},
    "ramdisk": b"\x1f\x8b\0\xff",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "a.sqlite")
    yield store
    store.close()


def infra_env(name: str = "a") -> InfraEnv:
    return InfraEnv.register({"name": name, "openshift_version": "4.20"}, NOW)


def test_what_is_kept_comes_back_equal_after_a_restart(tmp_path: Path) -> None:
    kept = InfraEnv.register(FULL, NOW)
    first = Store(tmp_path / "a.sqlite")
    first.add(kept)
    first.close()
    second = Store(tmp_path / "a.sqlite")
    assert second.find(kept.id) == kept
    second.close()


def test_a_database_of_the_first_release_is_taken_over(tmp_path: Path) -> None:
    """Its table, as that release made it, with a row of its own."""
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as database:
        database.execute(
            "CREATE TABLE infra_envs (id VARCHAR(36) NOT NULL, name TEXT NOT NULL,"
            " openshift_version TEXT NOT NULL, cpu_architecture TEXT NOT NULL, image_type TEXT NOT NULL,"
            " ignition_config_override TEXT, kernel_arguments JSON NOT NULL, network_keyfiles JSON NOT NULL,"
            " created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, PRIMARY KEY (id))"
        )
        row = ("a", "old", "4.20", "x86_64", "full-iso", None, '[["append", "a=1"]]', "{}", 0, 1)
        database.execute("INSERT INTO infra_envs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        database.commit()
    for name in ("new", "newer"):
        store = Store(tmp_path / "a.sqlite")
        old = store.find("a")
        assert (old.name, old.ramdisk) == ("old", None)
        assert old.kernel_arguments == (KernelArgument(Operation.APPEND, "a=1"),)
        store.add(InfraEnv.register({**FULL, "name": name}, NOW))
        store.close()


def test_all_are_listed_by_name(store: Store) -> None:
    for name in ("b", "a", "c"):
        store.add(infra_env(name))
    assert [infra_env.name for infra_env in store.list_all()] == ["a", "b", "c"]


def test_an_update_changes_only_what_it_names(store: Store) -> None:
    before = store.add(InfraEnv.register(FULL, NOW))
    after = store.update(before.id, {"name": "b", "kernel_arguments": ()}, LATER)
    assert store.find(before.id) == after
    assert (after.name, after.kernel_arguments) == ("b", ())
    assert after.ignition_config_override == before.ignition_config_override
    assert after.created_at == NOW
    assert after.updated_at == LATER


@pytest.mark.parametrize("now", [NOW, NOW - timedelta(days=1), NOW + timedelta(milliseconds=999)])
def test_every_update_has_a_later_date_even_where_the_clock_has_not_moved_on(
    store: Store, now: datetime
) -> None:
    kept = store.add(infra_env())
    dates = [kept.updated_at, *(store.update(kept.id, {}, now).updated_at for _ in range(3))]
    assert dates == sorted(set(dates))
    assert all(date.microsecond == 0 for date in dates)


def test_what_is_not_there(store: Store) -> None:
    gone = store.add(infra_env()).id
    store.remove(gone)
    assert store.list_all() == []
    with pytest.raises(NotFound):
        store.find(gone)
    with pytest.raises(NotFound):
        store.update(gone, {}, NOW)
    with pytest.raises(NotFound):
        store.remove(gone)
