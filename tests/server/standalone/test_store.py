from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import NotFound
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.reference import Kind
from image_service.server.standalone.infra_env import StandaloneInfraEnv
from image_service.server.standalone.store import InfraEnvStore

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
    "hostname": "a.example",
    "ssh_authorized_key": "ssh-ed25519 A\nssh-rsa B",
    "kernel_arguments": tuple(KernelArgument(operation, f"a=1={operation.value}") for operation in Operation),
    "network_keyfiles": {"b": "2", "a": "1\n"},
    "ramdisk": b"\x1f\x8b\0\xff",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[InfraEnvStore]:
    store = InfraEnvStore(tmp_path / "a.sqlite")
    yield store
    store.close()


def infra_env(name: str = "a") -> StandaloneInfraEnv:
    return StandaloneInfraEnv.register({"name": name, "openshift_version": "4.20"}, NOW)


def test_stored_infra_env_is_equal_after_a_restart(tmp_path: Path) -> None:
    kept = StandaloneInfraEnv.register(FULL, NOW)
    first = InfraEnvStore(tmp_path / "a.sqlite")
    first.add_infra_env(kept)
    first.close()
    second = InfraEnvStore(tmp_path / "a.sqlite")
    assert second.find_infra_env(kept.id) == kept
    second.close()


def test_store_of_an_earlier_version_gets_the_new_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    InfraEnvStore(path).close()
    with closing(sqlite3.connect(path)) as database:
        for column in ("family_config", "ssh_authorized_key"):
            database.execute(f"ALTER TABLE infra_envs DROP COLUMN {column}")
    store = InfraEnvStore(path)
    kept = store.add_infra_env(StandaloneInfraEnv.register(FULL, NOW))
    assert store.find_infra_env(kept.id) == kept
    store.close()


def test_infra_envs_are_listed_by_name(store: InfraEnvStore) -> None:
    for name in ("b", "a", "c"):
        store.add_infra_env(infra_env(name))
    assert [infra_env.name for infra_env in store.list_infra_envs()] == ["a", "b", "c"]


def test_update_changes_only_the_given_fields(store: InfraEnvStore) -> None:
    before = store.add_infra_env(StandaloneInfraEnv.register(FULL, NOW))
    after = store.update_infra_env(before.id, {"name": "b", "kernel_arguments": ()}, LATER)
    assert store.find_infra_env(before.id) == after
    assert (after.name, after.kernel_arguments) == ("b", ())
    assert after.ignition_config_override == before.ignition_config_override
    assert after.created_at == NOW
    assert after.updated_at == LATER


@pytest.mark.parametrize("now", [NOW, NOW - timedelta(days=1), NOW + timedelta(milliseconds=999)])
def test_update_has_a_later_date_even_if_the_clock_stands_still(store: InfraEnvStore, now: datetime) -> None:
    kept = store.add_infra_env(infra_env())
    dates = [kept.updated_at, *(store.update_infra_env(kept.id, {}, now).updated_at for _ in range(3))]
    assert dates == sorted(set(dates))
    assert all(date.microsecond == 0 for date in dates)


def test_removed_infra_env_is_not_found(store: InfraEnvStore) -> None:
    gone = store.add_infra_env(infra_env()).id
    store.remove_infra_env(gone)
    assert store.list_infra_envs() == []
    with pytest.raises(NotFound):
        store.find_infra_env(gone)
    with pytest.raises(NotFound):
        store.update_infra_env(gone, {}, NOW)
    with pytest.raises(NotFound):
        store.remove_infra_env(gone)
