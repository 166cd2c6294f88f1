"""The command line of a load test: all that is wrong with it is told at once."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs

from image_service.errors import ConfigurationError
from image_service.loadtest.objectives import parse_bytes_per_second, parse_objective, parse_per_second
from image_service.loadtest.plan import Plan
from image_service.loadtest.profiles import Profile
from image_service.loadtest.targets import (
    PLACEHOLDER,
    build_of,
    check_identifiers,
    fill,
    parse_lines,
    parse_target,
)
from image_service.settings.parsers import base_url, ca_file, writable_directory

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from image_service.loadtest.objectives import Objective

T = TypeVar("T")
D = TypeVar("D")

STANDARD_INPUT = "-"
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


@attrs.frozen(kw_only=True)
class Stated:
    """What the command line says.

    Args:
        plan: all but its targets.
        objectives: what is to be shown.
        templates: URLs, in which an infra-env may have to be put.
        infra_envs: identifiers for the templates.
        register: how many infra-envs are to be registered, instead.
        build: version and architecture to register them for; None: none are.
        api: where; None: nowhere.
        report: directory for the report; None: none.
        ca_file: authorities to trust beside the system's.
        insecure: verify no certificate.
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
        """Complete the plan.

        Args:
            infra_envs: identifiers for the templates.

        Returns:
            the plan with its targets.
        """
        known = tuple(infra_envs)
        urls = [url for template in self.templates for url in fill(template, known)]
        return attrs.evolve(self.plan, targets=tuple(map(parse_target, urls)))


class _Reading:
    """Parses texts, and keeps what is wrong with them."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def read(self, name: str, parse: Callable[[str], T], text: str | None, default: D) -> T | D:
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.faults.append(f"{name}: {reason}")
            return default

    def require(self, condition: object, fault: str) -> None:
        if not condition:
            self.faults.append(fault)


def read_options(options: argparse.Namespace) -> Stated:
    """Read the command line.

    Args:
        options: as ``image-service loadtest`` declares them.

    Returns:
        what is to be done.

    Raises:
        ConfigurationError: it makes no sense; a line for each fault, without what may be a credential.
    """
    reading = _Reading()
    profile = Profile(options.profile)
    templates = tuple(options.urls) + reading.read("--urls", _read_lines, options.urls_file, ())
    infra_envs, register = _infra_envs(reading, options.infra_envs)
    build = _check_urls(reading, templates, infra_envs, register, options.api)
    per_client = _rate(reading, options.rate, profile)
    objectives = [reading.read(f"--slo {text!a}", parse_objective, text, None) for text in options.slo]
    stated = Stated(
        plan=Plan(
            targets=(),
            profile=profile,
            clients=reading.read("--clients", _number(1, MAX_CLIENTS), options.clients, 1),
            seconds=reading.read("--duration", parse_duration, options.duration, 1.0),
            requests_per_second=per_client[0],
            bytes_per_second=per_client[1],
            timeout_seconds=reading.read("--timeout", parse_duration, options.timeout, 1.0),
            fields=_read_fields(reading, options.header),
            checks=reading.read("--check", _number(0, MAX_REGISTERED), options.check, 0),
        ),
        objectives=tuple(filter(None, objectives)),
        templates=templates,
        infra_envs=infra_envs,
        register=register,
        build=build,
        api=reading.read("--api", base_url, options.api, None),
        report=reading.read("--report", writable_directory, options.report, None),
        ca_file=reading.read("--cacert", ca_file, options.cacert, None),
        insecure=options.insecure,
    )
    if reading.faults:
        raise ConfigurationError("\n".join(reading.faults))
    return stated


def parse_duration(text: str) -> float:
    """Read ``30s``, ``5m``, ``1h`` or seconds; raises ValueError."""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError("must be a time such as 30s, 5m or 1h, of at most a week")
    return seconds


def _number(lowest: int, highest: int) -> Callable[[str], int]:
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


def _infra_envs(reading: _Reading, text: str | None) -> tuple[tuple[str, ...], int]:
    """A number of infra-envs to register; else a file of identifiers."""
    if text is not None and text.isdecimal():
        return (), reading.read("--infra-envs", _number(1, MAX_REGISTERED), text, 1)
    return reading.read("--infra-envs", _read_identifiers, text, ()), 0


def _read_identifiers(name: str) -> tuple[str, ...]:
    lines = _read_lines(name)
    check_identifiers(lines)
    return lines


def _check_urls(
    reading: _Reading, templates: tuple[str, ...], infra_envs: tuple[str, ...], register: int, api: str | None
) -> tuple[str, str] | None:
    """Say what is wrong with the URLs, each by its number: what is in them may be a credential."""
    reading.require(templates, "there is no URL: give one, or a file of them (--urls)")
    for number, template in enumerate(templates, 1):
        reading.read(f"URL {number}", parse_target, template.replace(PLACEHOLDER, "x"), None)
    open_ones = [template for template in templates if PLACEHOLDER in template]
    given = bool(infra_envs or register)
    reading.require(
        given or not open_ones, f"{PLACEHOLDER} is in a URL: --infra-envs says what belongs there"
    )
    reading.require(open_ones or not given, f"--infra-envs: no URL has {PLACEHOLDER} in it")
    reading.require(api or not register, "--infra-envs: a number needs --api, where they are registered")
    reading.require(register or not api, "--api: needs --infra-envs with a number, that are registered there")
    if not (register and open_ones):
        return None
    return reading.read("--infra-envs", build_of, open_ones[0], None)


def _rate(reading: _Reading, text: str | None, profile: Profile) -> tuple[float | None, float | None]:
    """Requests a second, or bytes a second."""
    if text is None:
        return None, None
    requests, byte_count = parse_per_second(text), parse_bytes_per_second(text)
    if requests is None and byte_count is None:
        reading.faults.append("--rate: must be requests a second as 20/s, or bytes a second as 10KiB/s")
    if byte_count is not None and profile.is_mount:
        reading.faults.append(
            "--rate: bytes a second are for --profile download; ranges have requests a second"
        )
    return requests, byte_count


def _read_fields(reading: _Reading, texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple(field for text in texts for field in reading.read("--header", _fields, text, ()))


def _fields(text: str) -> tuple[tuple[str, str], ...]:
    """A field, or those of the file behind an @."""
    lines = _read_lines(text[1:]) if text.startswith("@") else (text,)
    return tuple(map(_field, lines))


def _field(line: str) -> tuple[str, str]:
    found = _HEADER.fullmatch(line)
    if not found:
        raise ValueError("must be as 'Name: value' in visible ASCII, or @FILE with a line for each")
    if found[1].lower() in _OWN_FIELDS:
        raise ValueError(f"{found[1]} is set by the load test itself")
    return found[1], found[2] or ""
