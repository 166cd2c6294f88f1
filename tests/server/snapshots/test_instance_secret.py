from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from twisted.logger import capturedLogs, formatEvent

from image_service.common.concurrency.file_locks import directory_lock
from image_service.core.errors import ConfigurationError, StoreFailed
from image_service.server.snapshots.replicas.data_key import open_data_key
from image_service.server.snapshots.replicas.database import open_replica_database
from image_service.server.snapshots.storage.encryption import SECRET_FILE, load_or_create_secret

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from pathlib import Path
from image_service.server.snapshots.storage.encryption import load_or_create_secret
print("ready", flush=True)
sys.stdin.readline()
print(load_or_create_secret(Path(sys.argv[1])).hex())
"""


def test_secret_is_created_once(tmp_path: Path) -> None:
    secret = load_or_create_secret(tmp_path)
    assert len(secret) == 32
    assert load_or_create_secret(tmp_path) == secret
    assert [file.name for file in tmp_path.iterdir()] == [SECRET_FILE]


def test_instances_have_different_secrets(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert load_or_create_secret(tmp_path / "a") != load_or_create_secret(tmp_path / "b")


def test_secret_file_is_private_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        load_or_create_secret(tmp_path)
    finally:
        os.umask(umask)
    assert (tmp_path / SECRET_FILE).stat().st_mode & 0o777 == 0o600


def test_processes_that_start_together_share_one_secret(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, tmp_path],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    with directory_lock(tmp_path):  # until all of them wait for it, or are about to
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        assert not (tmp_path / SECRET_FILE).exists()
    printed = {process.communicate()[0].strip() for process in processes}
    assert printed == {load_or_create_secret(tmp_path).hex()}


@pytest.mark.parametrize("size", [0, 31, 33])
def test_file_of_another_size_is_replaced(tmp_path: Path, size: int) -> None:
    path = tmp_path / SECRET_FILE
    path.write_bytes(b"A" * size)
    path.chmod(0o600)
    with capturedLogs() as events:
        secret = load_or_create_secret(tmp_path)
    assert load_or_create_secret(tmp_path) == secret == path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert formatEvent(events[0]) == (
        f"{path} has {size} bytes instead of 32: creating a new secret; stored snapshots are lost"
    )


def test_secret_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    secret = load_or_create_secret(tmp_path)
    path = tmp_path / SECRET_FILE
    path.chmod(0o644)
    with capturedLogs() as events:
        assert load_or_create_secret(tmp_path) == secret
    assert path.stat().st_mode & 0o777 == 0o600
    assert formatEvent(events[0]) == f"{path} had mode 0644, which gave others access; now it has 0600"


def test_leftover_of_a_crash_is_not_used(tmp_path: Path) -> None:
    (tmp_path / f".{SECRET_FILE}.part").write_bytes(b"A" * 32)
    assert load_or_create_secret(tmp_path) != b"A" * 32
    assert [file.name for file in tmp_path.iterdir()] == [SECRET_FILE]


def test_missing_directory_is_a_store_failure(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match=os.strerror(errno.ENOENT)):
        load_or_create_secret(tmp_path / "a")


def test_unreadable_secret_is_a_store_failure(tmp_path: Path) -> None:
    (tmp_path / SECRET_FILE).mkdir()
    with pytest.raises(StoreFailed, match=os.strerror(errno.EISDIR)):
        load_or_create_secret(tmp_path)


# With secrets of the operator.

OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32


def test_secret_in_clear_is_kept_and_encrypted(tmp_path: Path) -> None:
    secret = load_or_create_secret(tmp_path)
    assert load_or_create_secret(tmp_path, [OLD]) == secret
    stored = (tmp_path / SECRET_FILE).read_bytes()
    assert secret not in stored
    assert (tmp_path / SECRET_FILE).stat().st_mode & 0o777 == 0o600


def test_secrets_of_the_instance_are_rotated(tmp_path: Path) -> None:
    secret = load_or_create_secret(tmp_path, [OLD])
    for instance_secrets in ([OLD], [NEW, OLD], [NEW], [OTHER, NEW]):
        assert load_or_create_secret(tmp_path, instance_secrets) == secret
    with pytest.raises(ConfigurationError, match="INSTANCE_SECRET_FILE"):
        load_or_create_secret(tmp_path, [OLD, NEW])
    assert load_or_create_secret(tmp_path, [OTHER]) == secret, "a start that failed has changed nothing"


def test_replicas_share_one_data_key(postgres: PostgresServer) -> None:
    with closing(open_replica_database(postgres.create_database())) as database:
        with ThreadPoolExecutor(4) as threads:
            keys = set(threads.map(lambda _: open_data_key(database, [OLD]), range(4)))
        assert len(keys) == 1
        assert {open_data_key(database, secrets) for secrets in ([NEW, OLD], [NEW], [OTHER, NEW])} == keys
        with pytest.raises(ConfigurationError, match="INSTANCE_SECRET_FILE"):
            open_data_key(database, [OLD, NEW])
        assert open_data_key(database, [OTHER]) in keys
