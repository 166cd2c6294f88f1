"""The report: verdict, JSON, text and HTML page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.tools.loadtest.reports.page import MAX_POINTS, render_page, thin
from image_service.tools.loadtest.reports.text import render_interval, render_text
from image_service.tools.loadtest.traffic.counters import Interval
from image_service.tools.loadtest.traffic.image_check import DigestCheck
from image_service.tools.loadtest.traffic.profiles import Profile
from image_service.tools.loadtest.traffic.tls import ADVICE
from image_service.tools.loadtest.traffic.verification import VerificationFault
from tests.tools.loadtest.reports import PLAN, SECRET, report

if TYPE_CHECKING:
    from image_service.tools.loadtest.reports.report import Report

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "loadtest.md"


@pytest.mark.parametrize(
    ("objective", "measured"),
    [
        ("p50<1s", 0.02),
        ("max<1s", 0.03),
        ("mean<1s", 0.02),
        ("errors<50%", 1 / 6),
        ("refusals<50%", 2 / 6),
        ("throughput>1B/s", 2_000_000),
        ("requests>1/s", 1.5),
    ],
)
def test_objectives_are_measured(objective: str, measured: float) -> None:
    made = report(objective, errors={"reset": 1}, refusals=2)
    assert made.measured(made.objectives[0]) == pytest.approx(measured, rel=0.01)
    assert made.missed() == []


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (report("p99<10ms"), "p99<10ms is missed: 30 ms"),
        (report("errors<0.1%", errors={"reset": 1}), "errors<0.1% is missed: 25 %"),
        (report("head.p99<1s"), "head.p99<1s is missed: not measured"),
        (report(faults={VerificationFault.BYTES_DIFFER: 2}), "verification failed: bytes-differ, 2 times"),
        (report(durations=()), "no request succeeded: no errors"),
    ],
)
def test_missed_objective_is_reported_with_the_measured_value(made: Report, reason: str) -> None:
    assert made.missed() == [reason]
    assert made.to_json()["passed"] is False
    text = render_text(made)
    assert text.endswith("FAILED\n")
    assert '<p class="bad">Failed</p>' in render_page(made)
    assert reason.replace(" is missed:", ": missed,") in text
    assert reason in render_page(made).replace("&lt;", "<")


def test_success_is_reported() -> None:
    made = report("p99<1s")
    text = render_text(made)
    assert "p99<1s: met, 30 ms\n" in text
    assert text.endswith("passed\n")
    assert '<p class="good">Passed</p>' in render_page(made)
    assert re.search(r"^request +3 +20\.?\d* ms +30 ms +30 ms", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({}, "while the server stalls, fewer requests are sent"),
        ({"plan": attrs.evolve(PLAN, requests_per_second=5.0)}, "count from when a request was due"),
        ({"cpu_share": 0.95}, "used 95% of a processor: it was at its own limit"),
        ({"was_interrupted": True}, "It was ended early"),
        (
            {"errors": {"status-404": 9}, "details": {"status-404": "not found"}},
            "status-404: the server says: not found",
        ),
        ({}, "client: image-service 1.2.3; server: no Server field"),
        ({"server_software": ["a/1", "b"]}, "server: a/1, b"),
        *(({"errors": {"reset": 1, kind: 1}}, f"{kind}: {advice}.") for kind, advice in ADVICE.items()),
        (
            {"plan": attrs.evolve(PLAN, profile=Profile.DOWNLOAD), "durations": ()},
            "No download was complete",
        ),
    ],
)
def test_remarks_explain_the_numbers(changes: dict[str, Any], remark: str) -> None:
    made = report(**changes)
    assert remark in render_text(made)
    assert remark in render_page(made)


@pytest.mark.parametrize(
    ("check", "shown"),
    [
        (DigestCheck("full.iso", "not-offered", "ab" * 32), "full.iso: SHA-256 not-offered"),
        (DigestCheck("full.iso", "status-404"), "full.iso: status-404"),
        (DigestCheck("full.iso", "status-404", detail="not found"), "full.iso: status-404: not found"),
    ],
)
def test_digest_is_shown_only_for_images_that_were_read(check: DigestCheck, shown: str) -> None:
    made = report(checks=(check,))
    assert f"read whole: {shown}\n" in render_text(made)
    assert f"Read whole: {shown}<" in render_page(made)


def test_reports_hold_no_credentials() -> None:
    made = report("p99<1s", examples=("bytes-differ: image 1",))
    assert SECRET not in f"{made!r} {json.dumps(made.to_json())} {render_text(made)} {render_page(made)}"


def names(value: object) -> set[str]:
    """Return the names of all members."""
    if isinstance(value, list):
        return set().union(*map(names, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(names(member) for name, member in value.items()))


def test_json_members_are_documented() -> None:
    made = report(
        "p99<1s",
        errors=dict.fromkeys(["reset", *ADVICE], 1),
        details={"reset": "x"},
        faults={VerificationFault.LENGTH: 1},
    )
    document = json.loads(json.dumps(made.to_json()))
    documented = set(re.findall(r"`([^`\s]+)`", DOCUMENT.read_text()))
    assert names(document) <= documented


class Outside(HTMLParser):
    """Collects elements that load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        fetching = {"src", "href", "srcset", "data", "action"}
        if tag in {"script", "link", "iframe", "img", "object"} or fetching & {
            name for name, _ in attributes
        }:
            self.found.append(tag)


def test_charts_and_tables_scroll_on_narrow_screens() -> None:
    page = render_page(report("p99<1s"))
    wide = re.findall(r'(<div class="scroll">)?<(svg|table)[ >]', page)
    assert len(wide) == 5 + 3
    assert all(scrolls for scrolls, _ in wide)
    assert re.search(r"^svg \{.*min-width: 700px", page, re.MULTILINE)


def test_page_has_no_external_resources() -> None:
    page = render_page(report("p99<1s"))
    outside = Outside()
    outside.feed(page)
    assert outside.found == []
    assert "url(" not in page
    assert "@import" not in page


def test_report_page_escapes_html() -> None:
    page = render_page(report(examples=("<script>alert(1)</script>",)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


COUNTS = st.integers(0, 10**7)
SECONDS = st.floats(0, 1000)


@given(st.lists(st.tuples(COUNTS, COUNTS, SECONDS), max_size=4))
def test_charts_are_xml_with_all_points_inside(rows: list[tuple[int, int, float]]) -> None:
    intervals = [
        Interval(float(number), 1.0, count, count, errors, 0, seconds / 3, seconds / 2, seconds)
        for number, (count, errors, seconds) in enumerate(rows, 1)
    ]
    page = render_page(report(intervals=intervals))
    charts = re.findall("<svg.*?</svg>", page)
    assert len(charts) == (5 if rows else 1)
    for chart in charts:
        root = ET.fromstring(chart)  # noqa: S314 - our own
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for path in root.iter("path"):
            for across, up in re.findall(r"([-\d.]+) ([-\d.]+)", path.attrib["d"]):
                assert 0 <= float(across) <= width
                assert 0 <= float(up) <= height


@given(st.integers(0, 4 * MAX_POINTS))
def test_many_intervals_are_joined_without_losing_counts(count: int) -> None:
    rows = [Interval(n + 1.0, 1.0, n, 2 * n, n % 2, n % 3, 1.0, float(n), float(n)) for n in range(count)]
    thinned = thin(rows)
    assert len(thinned) <= MAX_POINTS
    for name in ("seconds", "requests", "byte_count", "errors", "refusals"):
        assert sum(getattr(row, name) for row in thinned) == sum(getattr(row, name) for row in rows)
    assert max((row.max_seconds for row in thinned), default=0) == max(count - 1, 0)


def test_interval_is_rendered_as_one_line() -> None:
    interval = Interval(12.0, 1.0, 1234, 10**9, 1, 2, 0.001, 0.0123, 0.1)
    assert render_interval(interval, 30) == "12/30 s  1,234/s  1 GB/s  p99 12.3 ms  1 errors  2 refusals"
