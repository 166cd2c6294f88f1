from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.concurrency.sandbox import ResourceLimits, run_sandboxed
from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = ResourceLimits(file_bytes=4096, cpu_seconds=10, memory_bytes=2**30, wall_seconds=60)


def output_of(path: Path, command: list[str], limits: ResourceLimits | None = None) -> tuple[int, bytes]:
    """Run a command; return its status and what it wrote."""
    with path.open("wb") as file:
        status = run_sandboxed(command, Interruption(), descriptors=[], stdout=file.fileno(), limits=limits)
    return status, path.read_bytes()


@pytest.mark.parametrize("limits", [None, LIMITS], ids=["unlimited", "limited"])
def test_exit_status_and_output_are_returned(tmp_path: Path, limits: ResourceLimits | None) -> None:
    assert output_of(tmp_path / "output", ["sh", "-c", "echo said; exit 3"], limits) == (3, b"said\n")


def test_environment_holds_only_path_and_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    names = {line.partition(b"=")[0] for line in output_of(tmp_path / "output", ["env"])[1].splitlines()}
    assert names == {b"PATH", b"LC_ALL"}


def test_only_given_descriptors_are_inherited(tmp_path: Path) -> None:
    for name in ("kept", "other"):
        (tmp_path / name).touch()
    with (tmp_path / "kept").open() as kept, (tmp_path / "other").open() as other:
        kept_path, other_path = (f"/proc/self/fd/{file.fileno()}" for file in (kept, other))
        os.set_inheritable(other.fileno(), True)  # noqa: FBT003 - the standard library's signature
        command = ["sh", "-c", f"test -e {kept_path} && ! test -e {other_path}"]
        assert run_sandboxed(command, Interruption(), descriptors=[kept.fileno()]) == 0


def test_file_size_limit_is_enforced(tmp_path: Path) -> None:
    status, written = output_of(tmp_path / "output", ["sh", "-c", "head -c 8192 /dev/zero"], LIMITS)
    assert status != 0
    assert len(written) == LIMITS.file_bytes


def test_time_out_kills_the_program() -> None:
    quick = ResourceLimits(4096, 10, 2**30, wall_seconds=0.0)
    with pytest.raises(Unavailable, match="sleep took more than 0 s"):
        run_sandboxed(["sleep", "999"], Interruption(), descriptors=[], limits=quick)


def test_missing_program_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="no-such-program is not installed"):
        run_sandboxed(["no-such-program"], Interruption(), descriptors=[])


def test_program_does_not_start_after_an_interruption() -> None:
    interruption = Interruption()
    interruption.interrupt()
    with pytest.raises(Interrupted):
        run_sandboxed(["no-such-program"], interruption, descriptors=[])
