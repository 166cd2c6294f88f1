"""Runs the console script in this process, on files of its own."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, TypeAlias

import attrs
import pytest

from image_service.cli import main
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@attrs.frozen
class CommandResult:
    """The result of a command."""

    status: int
    output: bytes
    errors: str


Run: TypeAlias = "Callable[..., CommandResult]"


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    """Run a command line in this process, and restore its signal handlers."""
    handled = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}

    def run_here(*arguments: object) -> CommandResult:
        status = main([str(argument) for argument in arguments])
        output, errors = capfdbinary.readouterr()
        return CommandResult(status, output, errors.decode())

    yield run_here
    for number, handler in handled.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def live_iso() -> bytes:
    """A live ISO with a minimal one in it."""
    return live_iso_with_minimal()


@pytest.fixture
def base(tmp_path: Path, live_iso: bytes) -> Path:
    """The same as a file, alone in its directory."""
    path = tmp_path / "in" / "base.iso"
    path.parent.mkdir()
    path.write_bytes(live_iso)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The path of the result, alone in its directory too."""
    path = tmp_path / "out" / "out.iso"
    path.parent.mkdir()
    return path
