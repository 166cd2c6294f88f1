"""Programs in a sandbox, in each isolation that this machine has."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.programs.interruptible import run_interruptibly
from image_service.common.programs.sandbox import ResourceLimits
from image_service.core.errors import ConversionFailed, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.common.programs.program import ProgramResult

LIMITS = ResourceLimits(file_bytes=4096, cpu_seconds=10, address_space_bytes=2**30)


def run(*command: str, descriptors: tuple[int, ...] = (), limits: ResourceLimits = LIMITS) -> ProgramResult:
    return run_interruptibly(command, Interruption(), descriptors=descriptors, limits=limits)


@pytest.mark.parametrize("limits", [ResourceLimits(), LIMITS], ids=["unlimited", "limited"])
@pytest.mark.usefixtures("isolation")
def test_exit_status_and_output_are_returned(limits: ResourceLimits) -> None:
    result = run("sh", "-c", "echo said; echo meant >&2; exit 3", limits=limits)
    assert (result.status, result.output, result.messages) == (3, b"said\n", "meant\n")


@pytest.mark.usefixtures("isolation")
def test_environment_holds_only_path_and_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    names = {line.partition(b"=")[0] for line in run("env").output.splitlines()}
    assert names - {b"PWD"} == {b"PATH", b"LC_ALL"}  # the shell that starts it, and bwrap, add PWD


@pytest.mark.usefixtures("isolation")
def test_only_given_descriptors_are_inherited(tmp_path: Path) -> None:
    for name in ("kept", "other"):
        (tmp_path / name).touch()
    with (tmp_path / "kept").open() as kept, (tmp_path / "other").open() as other:
        kept_path, other_path = (f"/proc/self/fd/{file.fileno()}" for file in (kept, other))
        os.set_inheritable(other.fileno(), True)  # noqa: FBT003 - the standard library's signature
        command = ("sh", "-c", f"test -e {kept_path} && ! test -e {other_path}")
        assert run(*command, descriptors=(kept.fileno(),)).status == 0


@pytest.mark.usefixtures("isolation")
def test_file_size_limit_is_enforced(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as file:
        command = ("sh", "-c", f"head -c 8192 /dev/zero >/proc/self/fd/{file.fileno()}")
        assert run(*command, descriptors=(file.fileno(),)).status != 0
    assert (tmp_path / "output").stat().st_size == LIMITS.file_bytes


@pytest.mark.usefixtures("isolation")
def test_signal_that_ends_the_program_is_its_status() -> None:
    assert run("sh", "-c", "kill -KILL $$").status == -9
    assert run("sh", "-c", "while :; do :; done", limits=attrs.evolve(LIMITS, cpu_seconds=1)).status == -24


@pytest.mark.usefixtures("isolation")
def test_time_out_kills_the_program() -> None:
    with pytest.raises(Unavailable, match="sleep took more than 0 s"):
        run_interruptibly(["sleep", "999"], Interruption(), descriptors=[], wall_seconds=0.0)


def test_missing_program_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="no-such-program is not installed"):
        run("no-such-program")
    monkeypatch.setattr("image_service.common.programs.dependencies.Dependency.find", lambda _: None)
    with pytest.raises(Unavailable, match="prlimit is not installed; install the package util-linux"):
        run("true")


def test_program_does_not_start_after_an_interruption() -> None:
    interruption = Interruption()
    interruption.interrupt()
    with pytest.raises(Interrupted):
        run_interruptibly(["no-such-program"], interruption, descriptors=[])


@pytest.mark.parametrize("most", [2**20, 2**30 - 1])
def test_hard_limit_of_address_space_is_named(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    with pytest.raises(ConversionFailed, match=rf"{most} bytes of address space .* limit of {2**30}"):
        LIMITS.words()


def test_hard_limit_that_is_enough_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**30, 2**30))
    assert f"--as={2**30}" in LIMITS.words()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))
    assert ResourceLimits().words()
