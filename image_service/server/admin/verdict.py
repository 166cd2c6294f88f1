"""One sentence about the service: what a client would get now, and why it would not get an image."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from image_service.server.catalog.lifecycle.status import READY, describe_ready

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_READY_STATES = {state.value for state in READY}
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
_MOST_NAMED = 3


class Level(enum.IntEnum):
    """How well the service serves."""

    GOOD = 0
    IMPAIRED = 1
    """Some clients get what they ask for."""
    FAILING = 2
    """No client that begins now gets an image."""


@attrs.frozen
class ServiceVerdict:
    """The sentence, and its level."""

    level: Level
    text: str


def judge(
    status: Mapping[str, Any],
    images: Sequence[Mapping[str, Any]],
    machines: int,
    now: datetime,
    replicas: Sequence[Mapping[str, Any]] = (),
) -> ServiceVerdict:
    """Return the verdict.

    Args:
        status: ``Status`` of the API, without the verdict.
        images: ``images`` of ``GET /images``.
        machines: addresses that read an image now.
        now: in UTC.
        replicas: ``replicas`` of the status.
    """
    parts = [
        _judge_machines(machines),
        _judge_images(images),
        *_judge_upstream(status["upstream"], machines, now),
        *_judge_database(status["database"]),
        *_judge_replicas(replicas),
        *(
            (Level.FAILING, f"the certificate {each['file']} has ended")
            for each in status["certificates"]
            if each["state"] == "ended"
        ),
    ]
    if status["stopping"]:
        parts.append((Level.FAILING, "this service is shutting down"))
    host = status["host"]
    who = "" if host is None else f"this replica ({host}): "
    return ServiceVerdict(max(level for level, _ in parts), who + "; ".join(text for _, text in parts))


def _judge_machines(machines: int) -> tuple[Level, str]:
    return Level.GOOD, _count_machines(machines) if machines else "no machine reads an image now"


def _count_machines(machines: int) -> str:
    return f"serving {machines} machine{'s' * (machines != 1)}"


def _judge_images(images: Sequence[Mapping[str, Any]]) -> tuple[Level, str]:
    states = {(each["version"], each["cpu_architecture"], each["type"]): each for each in images}
    unready = [each for each in states.values() if each["state"] not in _READY_STATES]
    total, ready = len(states), len(states) - len(unready)
    text = describe_ready(ready, total)
    named = [
        f"{each['openshift_version'] or each['version']} is {each['state']}" for each in unready[:_MOST_NAMED]
    ]
    if more := len(unready[_MOST_NAMED:]):
        named.append(f"{more} more {'is' if more == 1 else 'are'} not")
    level = Level.GOOD if not unready else Level.IMPAIRED
    return level if ready else Level.FAILING, text + (f" ({', '.join(named)})" if named else "")


def _judge_upstream(upstream: Mapping[str, Any], machines: int, now: datetime) -> list[tuple[Level, str]]:
    since = upstream["failing_since"]
    if since is None:
        return []
    duration = format_duration((now - datetime.fromisoformat(since)).total_seconds())
    level = Level.IMPAIRED if machines else Level.FAILING
    status = upstream["failure_status"]
    text = f"assisted-service has failed for {duration}: new images get {status} ({upstream['failure']})"
    return [(level, text)]


def _judge_database(database: Mapping[str, Any] | None) -> list[tuple[Level, str]]:
    if database is None:
        return []
    if not database["was_reached"]:
        return [(Level.FAILING, "the database was not reached yet")]
    if database["failing_seconds"] is None:
        return []
    duration = format_duration(database["failing_seconds"])
    return [(Level.IMPAIRED, f"the database has not answered for {duration}: new images get 503")]


def _judge_replicas(replicas: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Level, str]]:
    """Yield the part on all replicas, if there are several."""
    present = [each for each in replicas if each["state"] == "present"]
    away = [each for each in replicas if each["state"] == "away"]
    if len(present) > 1:
        machines = sum(each["machines"] for each in present)
        yield Level.GOOD, f"all {len(present)} replicas: {_count_machines(machines)}"
    for each in away[:_MOST_NAMED]:
        duration = format_duration(each["age_seconds"])
        yield Level.IMPAIRED, f"the replica {each['host']} has been away for {duration}"
    if len(away) > _MOST_NAMED:
        yield Level.IMPAIRED, f"{len(away) - _MOST_NAMED} more replicas are away"


def format_duration(seconds: float) -> str:
    """Return a duration in its largest unit of which there are two or more: ``40 s``, ``3 min``."""
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"
