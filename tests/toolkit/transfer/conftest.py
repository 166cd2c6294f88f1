"""Runs ``image-toolkit`` in this process, with --json."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import pytest

from image_service.toolkit.commands import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@attrs.frozen
class ToolkitResult:
    """The result of a call.

    Args:
        status: exit status.
        report: the JSON object.
        printed: all of both outputs.
    """

    status: int
    report: dict[str, Any]
    printed: str

    @property
    def reason(self) -> str:
        """Why it failed."""
        return str(self.report["error"]["reason"])


Toolkit: TypeAlias = "Callable[..., ToolkitResult]"


@pytest.fixture
def toolkit(capfd: pytest.CaptureFixture[str]) -> Iterator[Toolkit]:
    """Run a command line in this process, and restore its signal handlers."""
    handled = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}

    def run(*arguments: object) -> ToolkitResult:
        status = main([*map(str, arguments), "--json", "--progress=json"])
        output, errors = capfd.readouterr()
        return ToolkitResult(status, json.loads(output), output + errors)

    yield run
    for number, handler in handled.items():
        signal.signal(number, handler)
