"""What a load test is to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from image_service.loadtest.profiles import Profile
    from image_service.loadtest.targets import Target


@attrs.frozen(kw_only=True)
class Plan:
    """A load test.

    Args:
        targets: images, at least one.
        profile: how they are read.
        clients: how many read at once.
        seconds: how long.
        requests_per_second: of each client; None: each asks when its last answer has ended.
        bytes_per_second: how fast each client reads a download; None: as it comes.
        timeout_seconds: an answer that does not go on for so long is given up.
        fields: further header fields; values may be credentials.
        checks: images that are read whole in the end, to compare their SHA-256.
    """

    targets: tuple[Target, ...]
    profile: Profile
    clients: int
    seconds: float
    requests_per_second: float | None = None
    bytes_per_second: float | None = None
    timeout_seconds: float = 10.0
    fields: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    checks: int = 1
