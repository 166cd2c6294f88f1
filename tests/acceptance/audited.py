"""The service, with a log of its open files, connections, child processes and compressions.

usage: python -m tests.acceptance.audited FILE serve
"""

from __future__ import annotations

import lzma
import os
import runpy
import sys
import zlib
from typing import TYPE_CHECKING, Any

from image_service.core.formats import deflate

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS = frozenset(
    {
        "compile",
        "import",
        "open",
        "socket.connect",
        "socket.getaddrinfo",
        "sqlite3.connect",
        "subprocess.Popen",
    }
)
_COMPRESSORS = {
    zlib: ("compress", "compressobj"),
    lzma: ("compress", "LZMACompressor"),
    deflate: ("deflate_within",),
}


def main() -> None:
    """Run the console script with all arguments but the first, which is the log file."""
    descriptor = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, _: object = ()) -> None:
        if event in EVENTS or event == "compression":
            os.write(descriptor, f"{event}\n".encode())

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            note("compression")
            return function(*arguments, **options)

        return call

    sys.addaudithook(note)
    for module, names in _COMPRESSORS.items():
        for name in names:
            setattr(module, name, noted(getattr(module, name)))
    runpy.run_module("image_service.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
