"""A comparison: servers do the same in turn, round after round, and are compared round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from bench.results import ComparisonResult, Cost, Ratio, Spread, Target, spread
from bench.servers import NGINX, SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bench.servers import Server
    from bench.stage import Stage
    from bench.wrk import Traffic

_GIGABYTE = 1e9
PEER_TARGET = Target(at_least=0.95)
"""Throughput of this service divided by that of a peer."""


def _do_nothing(_image: Path) -> None:
    pass


@attrs.frozen
class Comparison:
    """What servers are compared by.

    Args:
        name: of the scenario.
        scheme: ``http`` or ``https``.
        generate: sends requests to a URL of an image of a size, for some seconds.
        counts_bytes: throughput is in bytes, and CPU time is per GB; otherwise in requests.
        preferred_url: key of the URL to use instead of the scheme's, if the server has it.
        prepare: called with the base image before each measurement.
        throughput_target: as a ratio to nginx.
        cpu_target: same.
    """

    name: str
    scheme: str
    generate: Callable[[str, int, int], Traffic]
    counts_bytes: bool = False
    preferred_url: str = ""
    prepare: Callable[[Path], None] = _do_nothing
    throughput_target: Target = attrs.field(factory=Target)
    cpu_target: Target = attrs.field(factory=Target)

    def measure(self, stage: Stage) -> ComparisonResult:
        """Measure the servers that speak the scheme in turn, after one second each that does not count.

        Ratios are those to nginx, if it is among them, and those of this service to its peers.
        """
        able = [server for server in stage.servers if self.scheme in server.urls]
        samples: dict[str, list[_Sample]] = {server.name: [] for server in able}
        for server in able:
            self._sample(stage, server, 1)
        for number in range(stage.effort.rounds):
            for server in able if number % 2 else reversed(able):
                samples[server.name].append(self._sample(stage, server, stage.effort.seconds))
        pairs = [(name, NGINX) for name in samples if name != NGINX]
        pairs += [(SERVICE, name) for name in samples if name not in {SERVICE, NGINX}]
        return ComparisonResult(
            counts_bytes=self.counts_bytes,
            servers={name: _cost(of_server) for name, of_server in samples.items()},
            ratios=[
                self._ratio(name, base, samples)
                for name, base in pairs
                if name in samples and base in samples
            ],
        )

    def _sample(self, stage: Stage, server: Server, seconds: int) -> _Sample:
        url = server.urls.get(self.preferred_url, server.urls[self.scheme])
        size_bytes = server.size_bytes(self.scheme)
        self.prepare(stage.image)
        before = server.cpu_seconds()
        traffic = self.generate(url, size_bytes, seconds)
        after = server.cpu_seconds()
        amount = traffic.bytes / _GIGABYTE if self.counts_bytes else traffic.requests
        used = None if after is None or before is None or not amount else after - before
        per_unit = amount if self.counts_bytes else amount / 1000
        return _Sample(amount / traffic.seconds, None if used is None else used / per_unit)

    def _ratio(self, name: str, base: str, samples: dict[str, list[_Sample]]) -> Ratio:
        pairs = list(zip(samples[name], samples[base], strict=True))
        throughput_target, cpu_target = Target(), Target()
        if name == SERVICE:
            throughput_target = self.throughput_target if base == NGINX else PEER_TARGET
            cpu_target = self.cpu_target if base == NGINX else Target()
        return Ratio(
            server=name,
            base=base,
            throughput=spread([own.throughput / other.throughput for own, other in pairs]),
            cpu=_spread_of_known(
                [own.cpu / other.cpu if own.cpu is not None and other.cpu else None for own, other in pairs]
            ),
            throughput_target=throughput_target,
            cpu_target=cpu_target,
        )


@attrs.frozen
class _Sample:
    """One server in one round, in the units of `Cost`."""

    throughput: float
    cpu: float | None


def _cost(samples: Sequence[_Sample]) -> Cost:
    return Cost(
        throughput=spread([sample.throughput for sample in samples]),
        cpu=_spread_of_known([sample.cpu for sample in samples]),
    )


def _spread_of_known(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return spread(known) if known else None
