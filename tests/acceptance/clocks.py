"""A wall clock for the service that is wrong, or is set while the service runs: libfaketime.

The monotonic clock stays the kernel's, as it does when a machine's time is set.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tests.acceptance.clients import needs_client

if TYPE_CHECKING:
    from collections.abc import Mapping

_LIBRARIES = ("/usr/lib", "faketime/libfaketimeMT.so.1")


@attrs.frozen
class WallClock:
    """The service's wall clock.

    Args:
        file: has the clock's offset, which libfaketime reads at each call.
    """

    file: Path

    def set(self, offset_seconds: int) -> None:
        """Set the clock to the right time plus an offset."""
        beside = self.file.with_suffix(".new")
        beside.write_text(f"{offset_seconds:+d}\n")
        beside.replace(self.file)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of a process that has this clock."""
        needs_client("faketime")
        (library, *_) = sorted(Path(_LIBRARIES[0]).glob(f"*/{_LIBRARIES[1]}"))
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
