"""``python -m bench.unrecorded serve``: this service without its record of what clients read."""

from __future__ import annotations

import sys

from image_service.cli import main
from image_service.server.boot_progress.recording import PendingReads


def _record_nothing(*_: object) -> None:
    pass


if __name__ == "__main__":
    for name in ("record", "add", "record_head"):
        setattr(PendingReads, name, _record_nothing)
    sys.exit(main())
