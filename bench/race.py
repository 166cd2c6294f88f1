"""A race: servers do the same in turn, round after round, and are compared round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from bench.results import Cost, RaceResult, Ratio, Spread, Target, spread
from bench.servers import NGINX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.servers import Server
    from bench.wrk import Traffic

_GIGABYTE = 1e9


def _do_nothing() -> None:
    pass


@attrs.frozen
class Race:
    """What servers are compared by.

    Args:
        name: of the scenario.
        scheme: ``http`` or ``https``.
        drive: sends requests to a URL of an image of a size, for some seconds.
        counts_bytes: throughput is bytes, and CPU time is for a GB; else requests.
        better: which of a server's URLs is taken, where it has that one, instead of the scheme's.
        prepare: is called before each turn, and not measured.
        throughput_target: as a ratio to nginx.
        cpu_target: same.
    """

    name: str
    scheme: str
    drive: Callable[[str, int, int], Traffic]
    counts_bytes: bool = False
    better: str = ""
    prepare: Callable[[], None] = _do_nothing
    throughput_target: Target = attrs.field(factory=Target)
    cpu_target: Target = attrs.field(factory=Target)


@attrs.frozen
class _Lap:
    """One server in one round."""

    traffic: Traffic
    cpu_seconds: float | None

    @property
    def requests_per_second(self) -> float:
        return self.traffic.requests / self.traffic.seconds

    @property
    def gigabytes_per_second(self) -> float:
        return self.traffic.bytes / _GIGABYTE / self.traffic.seconds

    @property
    def cpu_per_1000_requests(self) -> float | None:
        if self.cpu_seconds is None or not self.traffic.requests:
            return None
        return self.cpu_seconds * 1000 / self.traffic.requests

    @property
    def cpu_per_gigabyte(self) -> float | None:
        if self.cpu_seconds is None or not self.traffic.bytes:
            return None
        return self.cpu_seconds * _GIGABYTE / self.traffic.bytes


def run_race(race: Race, servers: Sequence[Server], rounds: int, seconds: int) -> RaceResult:
    """Let servers do the same in turn, after one second that does not count.

    Args:
        race: what they do.
        servers: those that do not speak the scheme are left out.
        rounds: how often each has its turn.
        seconds: of a turn.

    Returns:
        the costs of each, and each compared with nginx, if that is among them.
    """
    able = [server for server in servers if race.scheme in server.urls]
    laps: dict[str, list[_Lap]] = {server.name: [] for server in able}
    for server in able:
        _run_lap(race, server, 1)
    for number in range(rounds):
        for server in able if number % 2 else reversed(able):
            laps[server.name].append(_run_lap(race, server, seconds))
    others = [name for name in laps if NGINX in laps and name != NGINX]
    return RaceResult(
        scenario=race.name,
        counts_bytes=race.counts_bytes,
        servers={name: _cost(of_server) for name, of_server in laps.items()},
        ratios={name: _ratio(race, laps[name], laps[NGINX]) for name in others},
        throughput_target=race.throughput_target,
        cpu_target=race.cpu_target,
    )


def _run_lap(race: Race, server: Server, seconds: int) -> _Lap:
    url = server.urls.get(race.better, server.urls[race.scheme])
    size_bytes = server.size_bytes(race.scheme)
    race.prepare()
    before = server.cpu_seconds()
    traffic = race.drive(url, size_bytes, seconds)
    after = server.cpu_seconds()
    return _Lap(traffic, None if after is None or before is None else after - before)


def _cost(laps: Sequence[_Lap]) -> Cost:
    return Cost(
        requests_per_second=spread([lap.requests_per_second for lap in laps]),
        gigabytes_per_second=spread([lap.gigabytes_per_second for lap in laps]),
        cpu_seconds_per_1000_requests=_spread_of_known([lap.cpu_per_1000_requests for lap in laps]),
        cpu_seconds_per_gigabyte=_spread_of_known([lap.cpu_per_gigabyte for lap in laps]),
    )


def _ratio(race: Race, laps: Sequence[_Lap], yardstick: Sequence[_Lap]) -> Ratio:
    pairs = list(zip(laps, yardstick, strict=True))
    if race.counts_bytes:
        throughput = [own.gigabytes_per_second / other.gigabytes_per_second for own, other in pairs]
        cpu = [_quotient(own.cpu_per_gigabyte, other.cpu_per_gigabyte) for own, other in pairs]
    else:
        throughput = [own.requests_per_second / other.requests_per_second for own, other in pairs]
        cpu = [_quotient(own.cpu_per_1000_requests, other.cpu_per_1000_requests) for own, other in pairs]
    return Ratio(throughput=spread(throughput), cpu=_spread_of_known(cpu))


def _quotient(own: float | None, other: float | None) -> float | None:
    return own / other if own is not None and other else None


def _spread_of_known(values: Sequence[float | None]) -> Spread | None:
    known = list(_known(values))
    return spread(known) if known else None


def _known(values: Sequence[float | None]) -> Iterator[float]:
    yield from (value for value in values if value is not None)
