"""The options of a load test, parsed from the command line; all faults are reported together."""

from __future__ import annotations

import os
import re
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs

from image_service.tools.loadtest.traffic.compose_client import DEFAULT_REQUEST, read_compose_request
from image_service.tools.loadtest.traffic.objectives import Dimension, parse_objective, parse_rate
from image_service.tools.loadtest.traffic.plan import (
    PLACEHOLDER,
    Plan,
    build_of,
    check_identifiers,
    fill,
    parse_base_url,
    parse_lines,
    parse_target,
)
from image_service.tools.loadtest.traffic.profiles import Profile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from image_service.tools.loadtest.traffic.objectives import Objective

T = TypeVar("T")
D = TypeVar("D")

STANDARD_INPUT = "-"
DEFAULT_CLIENTS, DEFAULT_DURATION = "16", "30s"
MAX_REGISTERED = 100_000
MAX_CLIENTS = 100_000
MAX_SECONDS = 7 * 24 * 3600.0
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smh]?)")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([!-~](?:[ -~\t]*[!-~])?)?[ \t]*")
_OWN_FIELDS = {
    "host",
    "range",
    "connection",
    "content-length",
    "transfer-encoding",
    "expect",
    "te",
    "upgrade",
}


class OptionsError(Exception):
    """The command line is invalid; the message has a line for each fault, without possible credentials."""


@attrs.frozen(kw_only=True)
class LoadTestOptions:
    """The parsed command line.

    Args:
        plan: all but its targets.
        objectives: the test fails unless all are met.
        templates: URLs, perhaps with ``PLACEHOLDER``.
        infra_envs: identifiers for the templates.
        register: how many infra-envs to register instead.
        build: version and architecture to register them for; None: none are registered.
        api: URL of the API to register them with.
        report: directory for the report; None: none is written.
        ca_file: authorities to trust in addition to the system's.
        insecure: do not verify certificates.
    """

    plan: Plan
    objectives: tuple[Objective, ...]
    templates: tuple[str, ...] = attrs.field(repr=False)
    infra_envs: tuple[str, ...]
    register: int
    build: tuple[str, str] | None
    api: str | None
    report: Path | None
    ca_file: Path | None
    insecure: bool

    def plan_for(self, infra_envs: Iterable[str]) -> Plan:
        """Return the plan with the targets for these identifiers."""
        identifiers = tuple(infra_envs)
        urls = [url for template in self.templates for url in fill(template, identifiers)]
        return attrs.evolve(self.plan, targets=tuple(map(parse_target, urls)))


class FaultCollector:
    """Parses texts, and collects the faults."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def parse(self, name: str, parse: Callable[[str], T], text: str | None, default: D) -> T | D:
        """Return a parsed text; the default if there is none, or if it has a fault."""
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.faults.append(f"{name}: {reason}")
            return default

    def require(self, condition: object, fault: str) -> None:
        """Collect a fault unless a condition holds."""
        if not condition:
            self.faults.append(fault)


def parse_options(arguments: argparse.Namespace) -> LoadTestOptions:
    """Parse the arguments of ``image-service loadtest``; raises OptionsError."""
    collector = FaultCollector()
    parse = collector.parse
    profile = Profile(arguments.profile)
    templates = tuple(arguments.urls) + parse("--urls", _read_lines, arguments.urls_file, ())
    infra_envs, register = _infra_envs(collector, arguments.infra_envs)
    build = _check_urls(collector, templates, infra_envs, register, arguments.api)
    requests_per_second, bytes_per_second = parse_rates(collector, arguments.rate, profile)
    objectives = [parse(f"--slo {text!a}", parse_objective, text, None) for text in arguments.slo]
    checks = parse("--check", parse_number(0, MAX_REGISTERED), arguments.check, 0)
    collector.require(
        arguments.compose is None or profile is Profile.COMPOSER, "--compose: needs --profile composer"
    )
    of_a_fleet = arguments.ranges, arguments.start, arguments.outage
    collector.require(
        of_a_fleet == (None, None, None), f"--ranges, --start, --outage: need --profile {Profile.FLEET}"
    )
    fields = [field for text in arguments.header for field in parse("--header", _fields, text, ())]
    options = LoadTestOptions(
        plan=Plan(
            targets=(),
            profile=profile,
            clients=parse("--clients", parse_number(1, MAX_CLIENTS), arguments.clients or DEFAULT_CLIENTS, 1),
            seconds=parse("--duration", parse_duration, arguments.duration or DEFAULT_DURATION, 1.0),
            requests_per_second=requests_per_second,
            bytes_per_second=bytes_per_second,
            timeout_seconds=parse("--timeout", parse_duration, arguments.timeout, 1.0),
            fields=tuple(fields),
            checks=checks if profile is not Profile.COMPOSER else 0,
            compose=parse("--compose", read_compose_request, arguments.compose, DEFAULT_REQUEST),
        ),
        objectives=tuple(filter(None, objectives)),
        templates=templates,
        infra_envs=infra_envs,
        register=register,
        build=build,
        api=parse("--api", parse_base_url, arguments.api, None),
        report=parse("--report", writable_directory, arguments.report, None),
        ca_file=parse("--cacert", _ca_file, arguments.cacert, None),
        insecure=arguments.insecure,
    )
    if collector.faults:
        raise OptionsError("\n".join(collector.faults))
    return options


def parse_duration(text: str) -> float:
    """Parse ``30s``, ``5m``, ``1h`` or seconds; raises ValueError."""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError("must be a time such as 30s, 5m or 1h, of at most a week")
    return seconds


def parse_number(lowest: int, highest: int) -> Callable[[str], int]:
    """Return a function that parses a number of these bounds; it raises ValueError."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not lowest <= int(text) <= highest:
            raise ValueError(f"must be a whole number, from {lowest} to {highest}")
        return int(text)

    return parse


def _read_lines(name: str) -> tuple[str, ...]:
    text = sys.stdin.read() if name == STANDARD_INPUT else Path(name).read_text(encoding="utf-8")
    lines = tuple(parse_lines(text))
    if not lines:
        raise ValueError("has no entry")
    return lines


def _infra_envs(collector: FaultCollector, text: str | None) -> tuple[tuple[str, ...], int]:
    """Parse the number of infra-envs to register, or a file of identifiers."""
    if text is not None and text.isdecimal():
        return (), collector.parse("--infra-envs", parse_number(1, MAX_REGISTERED), text, 1)
    return collector.parse("--infra-envs", _read_identifiers, text, ()), 0


def _read_identifiers(name: str) -> tuple[str, ...]:
    lines = _read_lines(name)
    check_identifiers(lines)
    return lines


def _check_urls(
    collector: FaultCollector,
    templates: tuple[str, ...],
    infra_envs: tuple[str, ...],
    register: int,
    api: str | None,
) -> tuple[str, str] | None:
    """Report faults by the number of a URL, which may hold a credential; return the build to register for."""
    collector.require(templates, "a URL is required, or a file of URLs (--urls)")
    for number, template in enumerate(templates, 1):
        collector.parse(f"URL {number}", parse_target, template.replace(PLACEHOLDER, "x"), None)
    unfilled = [template for template in templates if PLACEHOLDER in template]
    has_infra_envs = bool(infra_envs or register)
    collector.require(
        has_infra_envs or not unfilled,
        f"{PLACEHOLDER} is in a URL: --infra-envs must provide the identifiers",
    )
    collector.require(unfilled or not has_infra_envs, f"--infra-envs: no URL has {PLACEHOLDER} in it")
    collector.require(api or not register, "--infra-envs: a number needs --api to register them")
    collector.require(register or not api, "--api: needs --infra-envs with the number to register")
    if not (register and unfilled):
        return None
    return collector.parse("--infra-envs", build_of, unfilled[0], None)


def parse_rates(
    collector: FaultCollector, text: str | None, profile: Profile
) -> tuple[float | None, float | None]:
    """Parse requests per second, or bytes per second."""
    if text is None:
        return None, None
    requests = parse_rate(text, Dimension.PER_SECOND)
    byte_count = parse_rate(text, Dimension.BYTES_PER_SECOND)
    if requests is None and byte_count is None:
        collector.faults.append("--rate: must be requests per second as 20/s, or bytes per second as 10KiB/s")
    if byte_count is not None and profile not in {Profile.DOWNLOAD, Profile.FLEET}:
        collector.faults.append(
            f"--rate: bytes per second need --profile {Profile.DOWNLOAD} or {Profile.FLEET}; the others take "
            "requests per second"
        )
    return requests, byte_count


def _fields(text: str) -> tuple[tuple[str, str], ...]:
    """Parse a field, or those of a file after @."""
    fields = []
    for line in _read_lines(text[1:]) if text.startswith("@") else (text,):
        found = _HEADER.fullmatch(line)
        if not found:
            raise ValueError("must be as 'Name: value' in visible ASCII, or @FILE with a line for each")
        if found[1].lower() in _OWN_FIELDS:
            raise ValueError(f"{found[1]} is set by the load test itself")
        fields.append((found[1], found[2] or ""))
    return tuple(fields)


def _ca_file(name: str) -> Path:
    path = Path(name)
    path.read_bytes()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError:
        raise ValueError("must be a file of certificates in PEM form") from None
    return path


def writable_directory(name: str) -> Path:
    """Return a directory that exists or can be made; raises ValueError."""
    path = Path(name)
    existing = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"must be a writable directory; {existing} is not writable")
    return path
