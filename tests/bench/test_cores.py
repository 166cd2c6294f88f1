"""Control groups, represented by files."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from bench import cores

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cgroup"
    path.mkdir()
    monkeypatch.setattr(cores, "_GROUPS", path)
    return path


@pytest.mark.parametrize(
    ("parent", "limits"),
    [
        ("", {"cpu.max": "2500 10000"}),
        ("cpu", {"cpu.cfs_quota_us": "2500", "cpu.cfs_period_us": "10000"}),
    ],
    ids=["v2", "v1"],
)
def test_control_group_limits_the_cpu_share(root: Path, parent: str, limits: dict[str, str]) -> None:
    (root / parent).mkdir(exist_ok=True)
    with ExitStack() as stack:
        group = cores.bounding_group(stack, "one", 0.25)
        assert group is not None
        assert group.parent == root / parent
        assert {file.name: file.read_text() for file in group.iterdir()} == limits
        cores.confine(7, group)
        assert (group / "cgroup.procs").read_text() == "7"
        for file in group.iterdir():  # which those of the kernel do by themselves
            file.unlink()
    assert not group.exists()


def test_unwritable_control_groups_return_none(root: Path) -> None:
    root.rmdir()
    with ExitStack() as stack:
        assert cores.bounding_group(stack, "one", 0.25) is None


def test_total_cpu_seconds_do_not_decrease() -> None:
    earlier = cores.total_cpu_seconds()
    assert 0 < earlier <= cores.total_cpu_seconds()
