"""How a fleet fared: the part of the report that other load tests do not have."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - attrs resolves annotations
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.frozen
class FleetResult:
    """How a fleet fared.

    Args:
        failed_hosts: that have not read all their ranges.
        upstream_calls: to assisted-service.
        bases_read: base images whose bytes hosts have got.
        events: each with the seconds since the start when it began, and when it had ended.
    """

    hosts: int
    failed_hosts: int
    infra_envs: int
    ranges: int
    upstream_calls: int
    bases_read: int
    events: Sequence[tuple[str, float, float]]

    def missed(self) -> list[str]:
        """Return the reasons for failure; none if all hosts were served."""
        if self.failed_hosts:
            return [f"{self.failed_hosts:,} of {self.hosts:,} hosts have not read all their ranges"]
        return []

    def lines(self) -> Iterator[str]:
        """Yield the lines for a terminal."""
        done = self.hosts - self.failed_hosts
        yield f"hosts       {done:,} of {self.hosts:,} read {self.ranges:,} ranges each"
        yield f"upstream    {self.upstream_calls:,} calls for {self.infra_envs:,} infra-envs"
        for name, begun_at, ended_at in self.events:
            yield f"at {begun_at:6.1f} s {name}, for {ended_at - begun_at:.1f} s"
