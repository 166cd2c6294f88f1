"""Verified parts of a download that was interrupted, in a directory that the user names for it."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from image_service.common.http.origins import public_url
from image_service.core.errors import TransferFailed
from image_service.toolkit.transfer.parts import VerifiedPart

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from image_service.common.transfer.manifest import ManifestPart


class KeptParts:
    """The image so far, and which of its parts are verified; one call at a time uses a directory.

    Args:
        directory: made if it does not exist; private.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.image = directory / "image"
        self._journal = directory / "parts"
        self._lock = threading.Lock()
        self._known: dict[str, VerifiedPart] = {}

    def __enter__(self) -> Self:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(self._journal, flags, 0o600), "r+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise TransferFailed(f"another call uses {self.directory}") from None
        for line in self._file:
            with suppress(ValueError):  # a call was killed while it wrote the line
                key, etag, md5 = json.loads(line)
                self._known[key] = VerifiedPart(etag, md5)
        self._file.write("\n")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def find(self, part: ManifestPart) -> VerifiedPart | None:
        """Return what the part was when it was complete; None: it was not."""
        return self._known.get(_key(part))

    def add(self, part: ManifestPart, verified: VerifiedPart, descriptor: int) -> None:
        """Record a part whose bytes are in the open image."""
        os.fdatasync(descriptor)
        with self._lock:
            self._file.write(json.dumps([_key(part), verified.etag, verified.md5]) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def clear(self) -> None:
        """Remove all that is kept, and the directory if nothing else is in it."""
        self.image.unlink(missing_ok=True)
        self._journal.unlink(missing_ok=True)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()


def _key(part: ManifestPart) -> str:
    return f"{part.offset} {part.length} {public_url(part.get_url)}"
