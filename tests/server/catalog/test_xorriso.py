from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.files.local_file import LocalFile
from image_service.common.programs import sandbox
from image_service.core.errors import Unavailable
from image_service.server.catalog.derived import xorriso
from image_service.server.catalog.derived.xorriso import Remastering, remaster
from tests.acceptance.media import master
from tests.core.formats.filesystems.iso_builder import VOLUME_ID
from tests.server.catalog.fake_xorriso import fake_xorriso
from tests.server.catalog.spies import SEEN, WARNING, spying

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.base_file import BaseFile
    from tests.server.catalog.lines import Lines

MIB = 2**20
NOTHING_MUCH = Remastering(("/removed",), {}, datetime(2025, 5, 23, tzinfo=UTC), "0" * 32, 8 * MIB)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[BaseFile]:
    """An ISO with a file of 4 MiB that stays, and one that goes."""
    path = tmp_path / "source.iso"
    master(path, {"kept": os.urandom(4 * MIB), "removed": b""}, VOLUME_ID)
    with path.open("rb") as file:
        yield LocalFile(file.fileno(), path.stat().st_size, str(path))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the copy goes."""
    return tmp_path / "target.iso"


def test_source_is_read_by_its_descriptor(source: BaseFile, target: Path) -> None:
    Path(source.path).unlink()
    remaster(source, target, NOTHING_MUCH, Interruption())
    assert target.stat().st_size > 4 * MIB


def test_size_of_the_result_is_limited(source: BaseFile, target: Path) -> None:
    small = attrs.evolve(NOTHING_MUCH, max_bytes=2 * MIB)
    with pytest.raises(Unavailable, match="File too large"):
        remaster(source, target, small, Interruption())
    assert target.stat().st_size <= 2 * MIB


def test_memory_is_limited(source: BaseFile, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xorriso, "MAX_MEMORY_BYTES", 8 * MIB)
    with pytest.raises(Unavailable, match="xorriso exited with status"):
        remaster(source, target, NOTHING_MUCH, Interruption())


def test_cpu_time_is_limited(
    source: BaseFile, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tested with an endless loop: a small ISO may be done before the kernel checks the limit."""
    monkeypatch.setattr(xorriso, "MAX_CPU_SECONDS", 1)
    fake_xorriso(tmp_path, monkeypatch, "while :; do :; done")
    with pytest.raises(Unavailable, match="xorriso exited with status -24"):
        remaster(source, target, NOTHING_MUCH, Interruption())


def test_process_is_stopped_at_the_time_limit(
    source: BaseFile, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xorriso, "MAX_SECONDS", 0.0)
    with pytest.raises(Unavailable, match="xorriso took more than 0 s"):
        remaster(source, target, NOTHING_MUCH, Interruption())


def test_first_error_message_is_the_reason(source: BaseFile, target: Path) -> None:
    with pytest.raises(Unavailable, match=r"xorriso exited with status 5: .*'/nowhere'") as refusal:
        remaster(source, target, attrs.evolve(NOTHING_MUCH, removed=("/nowhere",)), Interruption())
    assert "aborting" not in refusal.value.detail


def test_interrupted_remastering_starts_no_process(source: BaseFile, target: Path) -> None:
    interruption = Interruption()
    interruption.interrupt()
    with pytest.raises(Interrupted):
        remaster(source, target, NOTHING_MUCH, interruption)
    assert not target.exists()


def test_environment_of_this_process_is_not_passed_on(
    source: BaseFile, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SOURCE_DATE_EPOCH", "TZ", "HOME", "ASSISTED_SERVICE_HOST"):
        monkeypatch.setenv(name, "1")
    fake_xorriso(tmp_path, monkeypatch, f"env >{tmp_path}/environment")
    remaster(source, target, NOTHING_MUCH, Interruption())
    environment = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines())
    assert {
        name: environment[name] for name in environment.keys() - {"PATH", "PWD", "OLDPWD", "SHLVL", "_"}
    } == {
        "LC_ALL": "C",
        "TZ": "UTC",
    }


# Isolation.


def test_what_xorriso_reaches(
    isolation: str, source: BaseFile, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bwrap neither a file of the host nor the network, without bwrap at least no network."""
    with (
        spying("xorriso", tmp_path, monkeypatch),
        pytest.raises(Unavailable, match=f"xorriso exited with status {8 + SEEN[isolation]}: no message"),
    ):
        remaster(source, target, NOTHING_MUCH, Interruption())
    assert (tmp_path / "data" / "snapshot.secret.new").exists() == (isolation != "bwrap")


def test_bytes_are_the_same_in_each_isolation(
    isolation: str, source: BaseFile, target: Path, tmp_path: Path, lines: Lines
) -> None:
    (tmp_path / "added").write_bytes(b"content")
    added = attrs.evolve(NOTHING_MUCH, added={"/added": tmp_path / "added"})
    remaster(source, target, added, Interruption())
    assert b"content" in target.read_bytes()
    warned = lines.text
    again = tmp_path / "again.iso"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "find_isolation", lambda: "none")
        remaster(source, again, added, Interruption())
    assert again.read_bytes() == target.read_bytes()
    assert [line for line in lines.text.splitlines() if WARNING in line] == [f"xorriso: {WARNING}"]
    assert (f"xorriso: {WARNING}" in warned) == (isolation == "none")
