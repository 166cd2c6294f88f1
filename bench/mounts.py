"""What it costs to record what clients read: the same service with the record and without."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs

from bench.replay import replay
from bench.results import Target
from bench.servers import SERVICE, start_service
from bench.study import Figure
from bench.workers import range_scripts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.replay import Exchange
    from bench.servers import Server
    from bench.stage import Stage

_MODULES = {"recorded": "image_service.cli", "not recorded": "bench.unrecorded"}
_AHEAD = 2
_MICROSECONDS = 1e6
_TARGET = Target(at_least=0.95)


@attrs.define
class _Samples:
    """The samples of one service: requests per second, and microseconds of CPU time per request."""

    rates: list[float] = attrs.field(factory=list)
    costs: list[float] = attrs.field(factory=list)

    def measure(self, service: Server, scripts: Sequence[Sequence[Exchange]], seconds: int) -> None:
        """Add a sample."""
        before = service.cpu_seconds() or 0.0
        traffic = replay(service.urls["http"], scripts, seconds, ahead=_AHEAD)
        used = (service.cpu_seconds() or 0.0) - before
        self.rates.append(traffic.requests / traffic.seconds)
        self.costs.append(_MICROSECONDS * used / traffic.requests)


def study_mounts(stage: Stage) -> Iterator[Figure]:
    """Compare throughput of 64 KiB ranges with the record and without."""
    samples = {name: _Samples() for name in _MODULES}
    with ExitStack() as stack:
        services = {
            name: start_service(
                stack, stage.directory / name, [stage.image], stage.certificate, {}, name=name, module=module
            )
            for name, module in _MODULES.items()
        }
        scripts = {name: range_scripts(service) for name, service in services.items()}
        for number in range(stage.effort.rounds):
            for name in _MODULES if number % 2 else reversed(_MODULES):
                samples[name].measure(services[name], scripts[name], stage.effort.seconds)
    for name, each in samples.items():
        yield Figure(SERVICE, f"mounts {name}", "requests/s", each.rates)
        yield Figure(SERVICE, f"mounts {name}, CPU time", "us per request", each.costs)
    recorded, not_recorded = samples.values()
    rates = [one / other for one, other in zip(recorded.rates, not_recorded.rates, strict=True)]
    yield Figure(SERVICE, "recorded ÷ not recorded", "", rates, _TARGET)
    # It differs less than rates if the machine has other load.
    gains = [other / one for one, other in zip(recorded.costs, not_recorded.costs, strict=True)]
    yield Figure(SERVICE, "recorded ÷ not recorded, requests in a second of CPU time", "", gains, _TARGET)
