"""PromQL queries, parsed as far as needed to compare them with the metrics page."""

from __future__ import annotations

import re
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from prometheus_client.parser import text_string_to_metric_families

from image_service.server.observability.declarations import Declarations
from image_service.server.observability.families import (
    PREFIX,
    Family,
    Gauge,
    GaugeByLabel,
    ReadCounters,
)
from image_service.server.observability.metrics import Metrics
from image_service.server.snapshots.replicas.observer import ClaimOutcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    Series: TypeAlias = list[tuple[str, Mapping[str, str]]]

OPERATORS = {"and", "or", "unless", "bool", "offset"}
GROUPINGS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
OF_TARGETS = {"job", "instance", "namespace"}
"""Labels that Prometheus adds to whatever it reads."""

TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"[^"]*") | (?P<number>[0-9.]+(?:e[0-9]+|[smhdwy])?) | (?P<name>[a-zA-Z_:][\w:]*)
        | (?P<symbol>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){}\[\],])
    )""",
    re.VERBOSE,
)
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


@attrs.frozen
class Query:
    """The names in a PromQL query.

    Args:
        selectors: each metric with its matchers: label, operator, value.
        labels: of its groupings.
    """

    selectors: list[tuple[str, list[tuple[str, ...]]]]
    labels: set[str]


def tokens(text: str) -> list[str]:
    found, position = [], 0
    while text[position:].strip():
        match = TOKEN.match(text, position)
        assert match, f"no PromQL at {text[position:]!r}"
        found.append(match.group().strip())
        position = match.end()
    return found


def parse(text: str) -> Query:
    """Find metrics and labels; Prometheus itself judges the rest of the syntax."""
    found, rest = Query([], set()), iter([*tokens(text), ""])
    token = next(rest)
    while token:
        following = next(rest)
        if token in GROUPINGS and following == "(":
            found.labels.update(set(until(rest, ")")) - {","})
            following = next(rest)
        elif is_name(token) and token not in OPERATORS and following not in {"(", *GROUPINGS}:
            matchers = MATCHER.findall("".join(until(rest, "}"))) if following == "{" else []
            found.selectors.append((token, matchers))
            following = next(rest) if following == "{" else following
        token = following
    return found


def is_name(token: str) -> bool:
    return re.fullmatch(r"[a-zA-Z_:][\w:]*", token) is not None


def until(rest: Iterator[str], end: str) -> list[str]:
    return list(iter(lambda: next(rest), end))


def all_series() -> Series:
    """Return every series of a service that has answered successes and failures."""
    metrics = Metrics()
    for status in (206, 503):
        metrics.record_request("/byid/:token", "GET", status, 0.1, 10)
    metrics.record_first_byte("/byid/:token", 0.1)
    metrics.record_upstream_call("ignition", "ok", 0.1)
    metrics.record_claim(ClaimOutcome.ACQUIRED, 0.1)
    metrics.count_states("base_images", lambda: ["ready"])
    metrics.count_states("http_requests_inflight", lambda: ["/byid/:token"])
    for name in ("upstream_calls_running", "upstream_calls_waiting"):
        metrics.count_states(name, lambda: ["anonymous"])
    for family in Declarations():
        name = family.name.removeprefix(PREFIX)
        if isinstance(family, Gauge):
            metrics.read_gauge(name, lambda: 1)
        elif isinstance(family, GaugeByLabel):
            metrics.read_gauges(name, partial(_ones, family))
        elif isinstance(family, ReadCounters):
            metrics.read_counts(name, partial(_ones, family))
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return [(sample.name, sample.labels) for family in families for sample in family.samples]


def _ones(family: Family) -> dict[Any, float]:
    """Return 1 for all values of the labels; labels whose values are not declared have one."""
    values = product(*(declared or ("any",) for declared in family.labels.values()))
    return {each if len(each) > 1 else "".join(each): 1.0 for each in values}


def matches(labels: Mapping[str, str], matcher: tuple[str, ...]) -> bool:
    label, operator, value = matcher
    pattern = value if "~" in operator else re.escape(value)
    return (re.fullmatch(pattern, labels.get(label, "")) is not None) is not operator.startswith("!")


def check_query(text: str, series: Series, recorded: Collection[str]) -> None:
    """Check that a query matches series, and uses only labels that they have.

    Args:
        text: PromQL.
        series: of the service.
        recorded: names of recording rules.
    """
    query = parse(text)
    assert query.selectors
    labels = set(OF_TARGETS)
    for name, matchers in query.selectors:
        if name in recorded:
            continue
        found = [have for shown, have in series if shown == name]
        assert found, f"there is no metric {name}"
        labels |= {label for have in found for label in have}
        assert any(all(matches(have, one) for one in matchers) for have in found), f"no {name} has {matchers}"
        assert {label for label, _, _ in matchers} <= labels
    assert query.labels <= labels


def check_alternatives(text: str, series: Series) -> None:
    """Check that each alternative of ``a|b`` exists: nobody would notice a misspelled one."""
    for name, matchers in parse(text).selectors:
        for label, operator, value in matchers:
            have = {labels.get(label, "") for shown, labels in series if shown == name}
            one_by_one = value.split("|") if "~" in operator else [value]
            missing = [one for one in one_by_one if not any(re.fullmatch(one, known) for known in have)]
            assert set(missing) <= {"3.0"}  # the bound 3, as Prometheus 3 keeps it
