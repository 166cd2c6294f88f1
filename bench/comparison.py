"""A comparison: servers do the same in turn, round after round, and are compared round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from bench.results import ComparisonResult, Cost, Ratio, Spread, Target, spread
from bench.servers import NGINX, SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.servers import Server
    from bench.wrk import Traffic

_GIGABYTE = 1e9
PEER_TARGET = Target(at_least=0.95)
"""Throughput of this service divided by that of a peer."""


def _do_nothing() -> None:
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
        prepare: called before each measurement.
        throughput_target: as a ratio to nginx.
        cpu_target: same.
    """

    name: str
    scheme: str
    generate: Callable[[str, int, int], Traffic]
    counts_bytes: bool = False
    preferred_url: str = ""
    prepare: Callable[[], None] = _do_nothing
    throughput_target: Target = attrs.field(factory=Target)
    cpu_target: Target = attrs.field(factory=Target)


@attrs.frozen
class _Sample:
    """One server in one round."""

    traffic: Traffic
    cpu_seconds: float | None

    def throughput(self, *, counts_bytes: bool) -> float:
        """Return GB or requests per second."""
        amount = self.traffic.bytes / _GIGABYTE if counts_bytes else self.traffic.requests
        return amount / self.traffic.seconds

    def cpu(self, *, counts_bytes: bool) -> float | None:
        """Return CPU seconds per GB or per 1000 requests; None if unknown."""
        amount = self.traffic.bytes / _GIGABYTE if counts_bytes else self.traffic.requests / 1000
        return self.cpu_seconds / amount if self.cpu_seconds is not None and amount else None


def run_comparison(
    comparison: Comparison, servers: Sequence[Server], rounds: int, seconds: int
) -> ComparisonResult:
    """Measure the servers that speak the scheme in turn, after one second each that does not count.

    Args:
        comparison: what they do.
        servers: their ratios to nginx are computed if it is among them, and those of this service to its
            peers.
        rounds: measurements of each server.
        seconds: of a measurement.
    """
    able = [server for server in servers if comparison.scheme in server.urls]
    samples: dict[str, list[_Sample]] = {server.name: [] for server in able}
    for server in able:
        _measure(comparison, server, 1)
    for number in range(rounds):
        for server in able if number % 2 else reversed(able):
            samples[server.name].append(_measure(comparison, server, seconds))
    pairs = [(name, NGINX) for name in samples if name != NGINX]
    pairs += [(SERVICE, name) for name in samples if name not in {SERVICE, NGINX}]
    return ComparisonResult(
        scenario=comparison.name,
        counts_bytes=comparison.counts_bytes,
        servers={name: _cost(of_server) for name, of_server in samples.items()},
        ratios=[
            _ratio(comparison, name, base, samples)
            for name, base in pairs
            if name in samples and base in samples
        ],
    )


def _measure(comparison: Comparison, server: Server, seconds: int) -> _Sample:
    url = server.urls.get(comparison.preferred_url, server.urls[comparison.scheme])
    size_bytes = server.size_bytes(comparison.scheme)
    comparison.prepare()
    before = server.cpu_seconds()
    traffic = comparison.generate(url, size_bytes, seconds)
    after = server.cpu_seconds()
    return _Sample(traffic, None if after is None or before is None else after - before)


def _cost(samples: Sequence[_Sample]) -> Cost:
    return Cost(
        requests_per_second=spread([sample.throughput(counts_bytes=False) for sample in samples]),
        gigabytes_per_second=spread([sample.throughput(counts_bytes=True) for sample in samples]),
        cpu_seconds_per_1000_requests=_spread_of_known(
            [sample.cpu(counts_bytes=False) for sample in samples]
        ),
        cpu_seconds_per_gigabyte=_spread_of_known([sample.cpu(counts_bytes=True) for sample in samples]),
    )


def _ratio(comparison: Comparison, name: str, base: str, samples: dict[str, list[_Sample]]) -> Ratio:
    unit = comparison.counts_bytes
    pairs = list(zip(samples[name], samples[base], strict=True))
    cpus = [(own.cpu(counts_bytes=unit), other.cpu(counts_bytes=unit)) for own, other in pairs]
    throughput_target, cpu_target = Target(), Target()
    if name == SERVICE:
        throughput_target = comparison.throughput_target if base == NGINX else PEER_TARGET
        cpu_target = comparison.cpu_target if base == NGINX else Target()
    return Ratio(
        server=name,
        base=base,
        throughput=spread(
            [own.throughput(counts_bytes=unit) / other.throughput(counts_bytes=unit) for own, other in pairs]
        ),
        cpu=_spread_of_known([own / other if own is not None and other else None for own, other in cpus]),
        throughput_target=throughput_target,
        cpu_target=cpu_target,
    )


def _spread_of_known(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return spread(known) if known else None
