"""Every query in ``conf/prometheus-rules.yaml`` finds series of the page that the service shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from image_service.observe.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE = Path(__file__).resolve().parents[2] / "conf" / "prometheus-rules.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
]
RECORDED = [rule["record"] for rule in RULES if "record" in rule]
ALERTS = [rule for rule in RULES if "alert" in rule]

OPERATORS = {"and", "or", "unless", "bool", "offset"}
GROUPINGS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
OF_TARGETS = {"job", "instance"}
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
    """What a query of PromQL names.

    Args:
        selectors: each metric with its matchers: label, operator, value.
        labels: what it groups by.
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
    """Find metrics and labels; whether all of it is PromQL is Prometheus's to say."""
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


@pytest.mark.parametrize(
    ("query", "selectors", "labels"),
    [
        ("up", [("up", [])], set()),
        ("absent(up)", [("up", [])], set()),
        ('a{x="1",y!~"2|3"} > 0.5', [("a", [("x", "=", "1"), ("y", "!~", "2|3")])], set()),
        ("sum by (job, x) (rate(a[5m])) / b:c:d", [("a", []), ("b:c:d", [])], {"job", "x"}),
        ('a{x="(by)"} and on (job) b unless c', [("a", [("x", "=", "(by)")]), ("b", []), ("c", [])], {"job"}),
        ("sum(a) by (x) >= bool 1e3", [("a", [])], {"x"}),
    ],
)
def test_queries_are_taken_apart(query: str, selectors: list[Any], labels: set[str]) -> None:
    assert parse(query) == Query(selectors, labels)


@pytest.fixture(scope="module")
def series() -> list[tuple[str, Mapping[str, str]]]:
    """Give every series of a service that has answered, well and badly."""
    metrics = Metrics()
    for status in (206, 503):
        metrics.request_ended("/byid/:token", "GET", status, 0.1, 10)
    metrics.answer_began("/byid/:token", 0.1)
    metrics.upstream("ignition", "ok", 0.1)
    metrics.watch_each("base_images", lambda: ["ready"])
    metrics.watch_each("http_requests_inflight", lambda: ["/byid/:token"])
    for name in ("slots_taken", "slots_limit", "slots_queue_length", "connections"):
        metrics.watch(name, lambda: 1)
    for name in ("snapshot_grace_active", "snapshot_held_bytes"):
        metrics.watch(name, lambda: 1)
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return [(sample.name, sample.labels) for family in families for sample in family.samples]


def matches(labels: Mapping[str, str], matcher: tuple[str, ...]) -> bool:
    label, operator, value = matcher
    pattern = value if "~" in operator else re.escape(value)
    return (re.fullmatch(pattern, labels.get(label, "")) is not None) is not operator.startswith("!")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_queries_find_what_is_there(
    rule: dict[str, Any], series: list[tuple[str, Mapping[str, str]]]
) -> None:
    query = parse(rule["expr"])
    assert query.selectors
    labels = set(OF_TARGETS)
    for name, matchers in query.selectors:
        if name in RECORDED:
            continue
        found = [have for shown, have in series if shown == name]
        assert found, f"there is no metric {name}"
        labels |= {label for have in found for label in have}
        assert any(all(matches(have, one) for one in matchers) for have in found), f"no {name} has {matchers}"
        assert {label for label, _, _ in matchers} <= labels
    assert query.labels <= labels


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_alternatives_exist_one_by_one(
    rule: dict[str, Any], series: list[tuple[str, Mapping[str, str]]]
) -> None:
    """A misspelt one of ``a|b`` would be noticed by nobody."""
    for name, matchers in parse(rule["expr"]).selectors:
        for label, operator, value in matchers:
            have = {labels.get(label, "") for shown, labels in series if shown == name}
            one_by_one = value.split("|") if "~" in operator else [value]
            missing = [one for one in one_by_one if not any(re.fullmatch(one, known) for known in have)]
            assert set(missing) <= {"3.0"}  # the bound 3, as Prometheus 3 keeps it


def test_what_is_recorded_is_so_before_it_is_used() -> None:
    recorded: set[str] = set()
    for rule in RULES:
        used = {name for name, _ in parse(rule["expr"]).selectors if ":" in name}
        assert used <= recorded
        recorded.add(rule.get("record", ""))
    assert len(set(RECORDED)) == len(RECORDED)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_say_how_bad_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["alert"].startswith("ImageService")
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert alert["annotations"].keys() == {"summary", "description"}


def test_alerts_have_names_of_their_own() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len(set(names)) == len(names)
