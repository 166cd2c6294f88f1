"""Symbolic links in ``DATA_DIR`` at the names of files that the service writes: none is followed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import pytest
from twisted.internet.task import Clock

from image_service.common.concurrency.coordination import LOCKS_FILE
from image_service.common.concurrency.file_locks import FileLocks
from image_service.common.database.sqlite import SqliteDatabase
from image_service.common.files.atomic import atomic_target
from image_service.common.files.local_file import LocalFile
from image_service.core.errors import StoreFailed
from image_service.server.catalog.download.partial_file import OriginFile, PartialFile
from image_service.server.catalog.storage.data_dir import LOCKS, MANIFEST, DataDir
from image_service.server.catalog.storage.digest import Sidecar
from image_service.server.snapshots.storage.encryption import SECRET_FILE, load_or_create_secret
from image_service.server.snapshots.storage.sql_statements import DATABASE_FILE, SCHEMA_VERSION, TABLES
from image_service.server.standalone.certificates import prepare_certificates
from image_service.server.standalone.sample import unpack_sample
from image_service.server.standalone.service import Standalone
from image_service.server.standalone.store import InfraEnvStore
from image_service.server.streams.stream_state import StreamState, save_state
from image_service.settings.parsers import ListenAddress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.posixbase import PosixReactorBase

IMAGE = "rhcos-full-iso-x-x86_64.iso"
PARTIAL = f".{IMAGE}.part"
FOREIGN = b"a file elsewhere"


def use_database(data_dir: Path) -> None:
    database = SqliteDatabase(data_dir / DATABASE_FILE, TABLES, SCHEMA_VERSION)
    try:
        database.transact(lambda connection: connection.exec_driver_sql("CREATE TABLE added (x)"))
    finally:
        database.close()


def use_locks(data_dir: Path) -> None:
    with FileLocks(data_dir / LOCKS_FILE).try_lock("name"):
        pass


def use_data_dir(data_dir: Path) -> None:
    opened = DataDir(data_dir)
    try:
        opened.open()
    finally:
        opened.close()


def download(data_dir: Path) -> None:
    with PartialFile(data_dir / PARTIAL, "http://mirror.example/x.iso") as file:
        file.restart(OriginFile())
        file.append(b"bytes")


def publish(data_dir: Path) -> None:
    (data_dir / PARTIAL).write_bytes(b"a base image")
    DataDir(data_dir).publish(IMAGE)


def set_aside(data_dir: Path) -> None:
    publish(data_dir)
    DataDir(data_dir).set_aside(IMAGE, "it is refused")


def save_digest(data_dir: Path) -> None:
    (data_dir / IMAGE).write_bytes(b"a base image")
    file = LocalFile.open(data_dir / IMAGE)
    Sidecar(data_dir / f"{IMAGE}.json", file).save_digest("sha256", "0" * 64)
    file.close()


def derive(data_dir: Path) -> None:
    with atomic_target(data_dir / "rhcos-derived-minimal-iso-x-x86_64.iso") as target:
        target.write_bytes(b"a minimal ISO")


def make_certificates(data_dir: Path) -> None:
    prepare_certificates(data_dir, datetime(2026, 1, 1, tzinfo=UTC))


REFUSED: dict[str, Callable[[Path], object]] = {
    SECRET_FILE: load_or_create_secret,
    DATABASE_FILE: use_database,
    f"{DATABASE_FILE}-wal": use_database,
    f"{DATABASE_FILE}-shm": use_database,
    LOCKS_FILE: use_locks,
    LOCKS: use_data_dir,
    PARTIAL: download,
    "infra-envs.sqlite": lambda data_dir: InfraEnvStore(data_dir / "infra-envs.sqlite").close(),
}
REPLACED: dict[str, Callable[[Path], object]] = {
    f".{SECRET_FILE}.part": load_or_create_secret,
    MANIFEST: lambda data_dir: DataDir(data_dir).claim_files(IMAGE, IMAGE),
    f"{PARTIAL}.json": download,
    f"{IMAGE}.json": save_digest,
    "rhcos-derived-minimal-iso-x-x86_64.iso": derive,
    "rhcos-stream-stable.json": lambda data_dir: save_state(
        data_dir / "rhcos-stream-stable.json", StreamState()
    ),
    "ca.key": make_certificates,
    "ca.pem": make_certificates,
    "server.pem": make_certificates,
    "sample.iso": unpack_sample,
}
LEFT: dict[str, Callable[[Path], object]] = {IMAGE: publish, f"{IMAGE}.refused": set_aside}
"""Names that an operator may use for links to files that are only read."""


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    file = tmp_path / "foreign"
    file.write_bytes(FOREIGN)
    file.chmod(0o644)
    return file


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A directory that is itself reached by a link."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "data").symlink_to("volume")
    return tmp_path / "data"


def check_untouched(foreign: Path) -> None:
    assert (foreign.read_bytes(), foreign.stat().st_mode & 0o777) == (FOREIGN, 0o644)


@pytest.mark.parametrize("name", REFUSED)
def test_link_is_refused_by_name(data_dir: Path, foreign: Path, name: str) -> None:
    (data_dir / name).symlink_to(foreign)
    with pytest.raises((OSError, StoreFailed), match=f"{data_dir / name} is a symbolic link"):
        REFUSED[name](data_dir)
    check_untouched(foreign)


def test_link_in_place_of_the_stand_ins_directory_is_refused(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (data_dir / "standalone").symlink_to(tmp_path / "elsewhere")
    reactor = cast("PosixReactorBase", Clock())
    stand_in = Standalone(reactor, data_dir, ListenAddress("127.0.0.1", 0), None, str)
    with pytest.raises(OSError, match=f"{data_dir / 'standalone'} is a symbolic link"):
        stand_in._prepare()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("name", REPLACED)
def test_link_is_replaced(data_dir: Path, foreign: Path, name: str) -> None:
    (data_dir / name).symlink_to(foreign)
    REPLACED[name](data_dir)
    assert not (data_dir / name).is_symlink()
    check_untouched(foreign)


@pytest.mark.parametrize("name", LEFT)
def test_link_is_left(data_dir: Path, foreign: Path, name: str) -> None:
    (data_dir / name).symlink_to(foreign)
    LEFT[name](data_dir)
    assert (data_dir / name).is_symlink()
    check_untouched(foreign)


@pytest.mark.parametrize("use", [*REFUSED.values(), *REPLACED.values(), *LEFT.values()])
def test_data_dir_itself_may_be_a_link(data_dir: Path, use: Callable[[Path], object]) -> None:
    use(data_dir)
    assert list(data_dir.iterdir())


def test_link_at_the_name_of_a_temporary_directory_is_removed(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    link = data_dir / f".{IMAGE}.01234567.part"
    link.symlink_to(tmp_path / "elsewhere")
    use_data_dir(data_dir)
    assert not link.is_symlink()
    assert (tmp_path / "elsewhere" / "file").exists()
