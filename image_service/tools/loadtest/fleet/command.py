"""Runs a fleet from parsed options: makes the base images, starts all that serves it, and reports."""

from __future__ import annotations

import tempfile
import uuid
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import attrs

from image_service.tools.loadtest.command import (
    make_dialer,
    raise_descriptor_limit,
    run_to_report,
    show_report,
    tell_fault,
)
from image_service.tools.loadtest.fleet.assisted_service import FleetAssistedService
from image_service.tools.loadtest.fleet.expected_images import ExpectedImages
from image_service.tools.loadtest.fleet.fleet_run import FleetParts, FleetPlan, FleetRun
from image_service.tools.loadtest.fleet.services import FleetService, FleetServiceError
from image_service.tools.loadtest.fleet.splice import SplicedBase
from image_service.tools.loadtest.options import (
    MAX_CLIENTS,
    MAX_REGISTERED,
    FaultCollector,
    OptionsError,
    parse_duration,
    parse_number,
    parse_rates,
    writable_directory,
)
from image_service.tools.loadtest.traffic.objectives import parse_objective
from image_service.tools.loadtest.traffic.plan import Plan, parse_target
from image_service.tools.loadtest.traffic.profiles import MOUNT_RANGES, Profile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from image_service.tools.loadtest.reports.report import Report
    from image_service.tools.loadtest.traffic.objectives import Objective

SERVICES = 2
HOSTS, INFRA_ENVS, RANGES = "3500", "700", "3000"
DURATION, START, OUTAGE = "45m", "10m", "60s"
_IMAGE_BYTES = 64 << 20
_MORE_CONNECTIONS = 1000
_OWN_DESCRIPTORS = 512


@attrs.frozen
class FleetOptions:
    """The parsed command line.

    Args:
        requests_per_second: of each host; None: a host asks when its last answer is complete.
        bytes_per_second: how fast each host reads; None: as fast as bytes arrive.
        seconds: after which hosts that are not done have failed.
        report: directory for the report; None: none is written.
    """

    fleet: FleetPlan
    requests_per_second: float | None
    bytes_per_second: float | None
    seconds: float
    timeout_seconds: float
    objectives: tuple[Objective, ...]
    report: Path | None


def run_fleet(
    arguments: argparse.Namespace,
    sample: bytes,
    version: str,
    reactor: Any,  # noqa: ANN401 - a module
    client_version: str,
) -> int:
    """Run a fleet and write its reports.

    Args:
        arguments: as ``image-service loadtest`` declares them.
        sample: a small live ISO, from which the base images are made.
        version: of OpenShift, for which the sample is.
        reactor: the reactor, which has not run yet.

    Returns:
        exit status, as that of other load tests.
    """
    try:
        options = parse_fleet_options(arguments)
        raise_descriptor_limit(options.fleet.hosts + _OWN_DESCRIPTORS)
        with tempfile.TemporaryDirectory(prefix="image-service-fleet-") as directory:
            report = _run(options, Path(directory), sample, version, reactor, client_version)
    except (OptionsError, FleetServiceError) as error:
        return tell_fault(error)
    return show_report(report, options.report)


def parse_fleet_options(arguments: argparse.Namespace) -> FleetOptions:
    """Parse the arguments of a fleet; raises OptionsError."""
    collector = FaultCollector()
    parse = collector.parse
    for name, given in (
        ("URL", arguments.urls),
        ("--urls", arguments.urls_file),
        ("--api", arguments.api),
        ("--header", arguments.header),
        ("--compose", arguments.compose),
    ):
        collector.require(not given, f"{name}: --profile {Profile.FLEET} starts servers of its own")
    hosts = parse("--clients", parse_number(10, MAX_CLIENTS), arguments.clients or HOSTS, 10)
    infra_envs = arguments.infra_envs or INFRA_ENVS
    requests_per_second, bytes_per_second = parse_rates(collector, arguments.rate, Profile.FLEET)
    objectives = [parse(f"--slo {text!a}", parse_objective, text, None) for text in arguments.slo]
    options = FleetOptions(
        FleetPlan(
            hosts=hosts,
            infra_envs=parse("--infra-envs", parse_number(1, MAX_REGISTERED), infra_envs, 1),
            ranges=parse("--ranges", parse_number(1, MOUNT_RANGES), arguments.ranges or RANGES, 1),
            start_seconds=parse("--start", parse_duration, arguments.start or START, 1.0),
            outage_seconds=parse("--outage", parse_duration, arguments.outage or OUTAGE, 1.0),
        ),
        requests_per_second=requests_per_second,
        bytes_per_second=bytes_per_second,
        seconds=parse("--duration", parse_duration, arguments.duration or DURATION, 1.0),
        timeout_seconds=parse("--timeout", parse_duration, arguments.timeout, 1.0),
        objectives=tuple(filter(None, objectives)),
        report=parse("--report", writable_directory, arguments.report, None),
    )
    if collector.faults:
        raise OptionsError("\n".join(collector.faults))
    return options


def _run(  # noqa: PLR0913, PLR0917 - what `run_fleet` has
    options: FleetOptions,
    directory: Path,
    sample: bytes,
    version: str,
    reactor: Any,  # noqa: ANN401 - same
    client_version: str,
) -> Report:
    fleet = options.fleet
    bases = list(_make_bases(directory, sample))
    infra_envs = [str(uuid.UUID(int=number, version=4)) for number in range(1, fleet.infra_envs + 1)]
    assisted_service = FleetAssistedService(version, infra_envs)
    expected = ExpectedImages(infra_envs, bases, assisted_service.answers)
    with ExitStack() as stack:
        upstream = stack.enter_context(assisted_service.listening())
        connections = fleet.hosts + _MORE_CONNECTIONS
        services = [
            stack.enter_context(FleetService(directory / f"service-{number}", upstream, version, connections))
            for number in range(SERVICES)
        ]
        for service in services:
            service.configure(bases[0])
            service.start(infra_envs[-1])
        targets = tuple(
            parse_target(f"http://127.0.0.1:{service.port}{service.path(infra_env)}")
            for infra_env, service in zip(infra_envs, cycle(services), strict=False)
        )
        plan = Plan(
            targets=targets,
            profile=Profile.FLEET,
            clients=fleet.hosts,
            requests_per_second=options.requests_per_second,
            bytes_per_second=options.bytes_per_second,
            seconds=options.seconds,
            timeout_seconds=options.timeout_seconds,
            checks=0,
        )
        parts = FleetParts(bases, infra_envs, assisted_service, services, expected)
        dialer = make_dialer(reactor, plan, None, insecure=False, source=_address)
        run = lambda show: FleetRun(reactor, plan, dialer, show, fleet=fleet, parts=parts)  # noqa: E731 - one expression
        return run_to_report(run, plan, options.objectives, reactor, client_version)


def _address(number: int) -> str:
    """Return the address of a host: each has one of its own, as the service tells mounts apart by it."""
    return f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def _make_bases(directory: Path, sample: bytes) -> Iterator[SplicedBase]:
    """Write two base images that differ in all bytes behind the sample's."""
    for name in ("build-1", "build-2"):
        path = directory / f"{name}.iso"
        path.write_bytes(sample + Random(name).randbytes(_IMAGE_BYTES - len(sample)))  # noqa: S311 - no secret
        yield SplicedBase.open(path)
