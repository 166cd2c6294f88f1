"""A program in the place of xorriso or gpgv, whose status says what it could reach of the host."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.acceptance.clients import needs_client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

READ_A_SECRET, REACHED_THE_NETWORK, WROTE_A_FILE = 1, 2, 4
SEEN = {
    "bwrap": 0,
    "unshare": READ_A_SECRET | WROTE_A_FILE,
    "none": READ_A_SECRET | REACHED_THE_NETWORK | WROTE_A_FILE,
}
"""What the program of each isolation reaches."""
WARNING = "programs run without isolation: neither bwrap nor unshare works here"
_SCRIPT = """#!{bash}
seen=8
cat {secret} >/dev/null 2>&1 && seen=$((seen + {read}))
(: </dev/tcp/127.0.0.1/{port}) 2>/dev/null && seen=$((seen + {reached}))
(: >{secret}.new) 2>/dev/null && seen=$((seen + {wrote}))
exit $seen
"""


@contextmanager
def spying(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the program first in PATH under a name; its status is 8, and what it has reached.

    Args:
        name: of the program.
        directory: gets the program, and in ``data`` a secret.
        monkeypatch: restores PATH.
    """
    data, path = directory / "data", directory / "bin" / name
    data.mkdir()
    (data / "snapshot.secret").write_text("secret")
    path.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = _SCRIPT.format(
            bash=needs_client("bash"),
            secret=data / "snapshot.secret",
            port=server.getsockname()[1],
            read=READ_A_SECRET,
            reached=REACHED_THE_NETWORK,
            wrote=WROTE_A_FILE,
        )
        path.write_text(script)
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
        yield
