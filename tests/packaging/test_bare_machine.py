"""All tests pass for somebody who has none of their clients, twice at once on one machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import missing
from tests.packaging.conftest import bare_environment, copy_sources

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.acceptance, pytest.mark.soak, pytest.mark.timeout(3 * 3600)]

NOBODY = 65534
NO_NAMESPACE = 77
IGNORING_SIGNALS = ("sh", "-c", "trap '' HUP INT QUIT; exec make test >output 2>&1")


@pytest.fixture
def checkouts(tracked: list[str]) -> Iterator[list[Path]]:
    """Make two copies of the sources, for a user without privileges, in paths with a blank."""
    with TemporaryDirectory(prefix="check out ") as made:
        directory = Path(made)
        copies = [copy_sources(tracked, directory / name) for name in ("first", "second")]
        if os.geteuid() == 0:
            for path in (directory, *directory.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        yield copies


def test_bare_machine_runs_all_tests_twice_at_once(checkouts: list[Path]) -> None:
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    command = (*(as_nobody if os.geteuid() == 0 else ()), ".ci/bare", *IGNORING_SIGNALS)
    runs = [
        subprocess.Popen(
            command,
            cwd=checkout,
            env={**bare_environment(), "HOME": str(checkout), "REQUIRE_CLIENTS": "0"},
            stdin=subprocess.DEVNULL,
        )
        for checkout in checkouts
    ]
    statuses = [run.wait() for run in runs]
    if NO_NAMESPACE in statuses:
        missing("a mount namespace, for .ci/bare")
    told = [(checkout / "output").read_text(errors="replace") for checkout in checkouts]
    assert statuses == [0, 0], "\n".join(text[-20_000:] for text in told)
    assert all("= missing clients =" in text for text in told)
    assert all("xorriso (Debian package xorriso); left out for that:" in text for text in told)
