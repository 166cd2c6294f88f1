"""The sentence about the service, for each state that it can be in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from image_service.server.admin.verdict import Level, format_duration, judge

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
ANSWERS: dict[str, Any] = {"failing_since": None, "failure": "an old one", "failure_status": 502}
FAILS = {"failing_since": "2026-03-04T05:05:27Z", "failure": "connection refused", "failure_status": 502}
GOOD: dict[str, Any] = {
    "host": None,
    "stopping": False,
    "upstream": ANSWERS,
    "database": None,
    "certificates": [{"file": "tls.crt", "state": "ending"}],
}
REACHED = {"was_reached": True, "failing_seconds": None}


def image(version: str, state: str = "ready") -> dict[str, str]:
    return {
        "openshift_version": version,
        "version": f"{version}.20250523-0",
        "cpu_architecture": "x86_64",
        "type": "full-iso",
        "state": state,
    }


ONE = [image("4.20")]
FIVE = [image("4.20"), image("4.21", "downloading"), *(image(f"4.1{n}", "failed") for n in range(3))]
OUTAGE = "assisted-service has failed for 40 s: new images get 502 (connection refused)"


@pytest.mark.parametrize(
    ("changes", "images", "machines", "level", "text"),
    [
        ({}, ONE, 0, Level.GOOD, "no machine reads an image now; 1 of 1 base image is ready"),
        ({}, [*ONE, *ONE], 1, Level.GOOD, "serving 1 machine; 1 of 1 base image is ready"),
        (
            {},
            [image("a", "degraded"), *ONE],
            4,
            Level.GOOD,
            "serving 4 machines; 2 of 2 base images are ready",
        ),
        (
            {},
            FIVE,
            4,
            Level.IMPAIRED,
            (
                "serving 4 machines; 1 of 5 base images is ready"
                " (4.21 is downloading, 4.10 is failed, 4.11 is failed, 1 more is not)"
            ),
        ),
        (
            {},
            FIVE[1:2],
            0,
            Level.FAILING,
            "no machine reads an image now; 0 of 1 base image is ready (4.21 is downloading)",
        ),
        ({}, [], 0, Level.FAILING, "no machine reads an image now; 0 of 0 base images are ready"),
        (
            {"upstream": FAILS},
            ONE,
            2,
            Level.IMPAIRED,
            f"serving 2 machines; 1 of 1 base image is ready; {OUTAGE}",
        ),
        (
            {"upstream": FAILS},
            ONE,
            0,
            Level.FAILING,
            f"no machine reads an image now; 1 of 1 base image is ready; {OUTAGE}",
        ),
        (
            {"database": REACHED, "host": "image-service-0"},
            ONE,
            1,
            Level.GOOD,
            "this replica (image-service-0): serving 1 machine; 1 of 1 base image is ready",
        ),
        (
            {"database": {**REACHED, "failing_seconds": 181.0}, "host": "b"},
            ONE,
            1,
            Level.IMPAIRED,
            (
                "this replica (b): serving 1 machine; 1 of 1 base image is ready;"
                " the database has not answered for 3 min: new images get 503"
            ),
        ),
        (
            {"database": {"was_reached": False, "failing_seconds": None}, "host": "b"},
            ONE,
            0,
            Level.FAILING,
            (
                "this replica (b): no machine reads an image now; 1 of 1 base image is ready;"
                " the database was not reached yet"
            ),
        ),
        (
            {"certificates": [{"file": "tls.crt", "state": "ended"}], "stopping": True},
            ONE,
            1,
            Level.FAILING,
            (
                "serving 1 machine; 1 of 1 base image is ready; the certificate tls.crt has ended;"
                " this service is shutting down"
            ),
        ),
    ],
)
def test_verdict_says_what_a_client_would_get(
    changes: dict[str, Any], images: list[dict[str, str]], machines: int, level: Level, text: str
) -> None:
    verdict = judge({**GOOD, **changes}, images, machines, NOW)
    assert (verdict.text, verdict.level) == (text, level)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172800, "2 d")],
)
def test_duration_has_its_largest_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def replica(host: str, machines: int, age_seconds: float = 1.0) -> dict[str, Any]:
    state = "away" if age_seconds > 15 else "present"
    return {"host": host, "machines": machines, "age_seconds": age_seconds, "state": state}


@pytest.mark.parametrize(
    ("replicas", "level", "text"),
    [
        ([replica("a", 4)], Level.GOOD, ""),
        ([replica("a", 4), replica("b", 3)], Level.GOOD, "; all 2 replicas: serving 7 machines"),
        ([replica("a", 4), replica("b", 3, 40)], Level.IMPAIRED, "; the replica b has been away for 40 s"),
        (
            [replica("a", 0), replica("c", 0), *(replica(f"b{n}", 3, 130) for n in range(5))],
            Level.IMPAIRED,
            "; all 2 replicas: serving 0 machines; "
            + "; ".join(f"the replica b{n} has been away for 2 min" for n in range(3))
            + "; 2 more replicas are away",
        ),
    ],
)
def test_other_replicas_are_summed_and_missed(
    replicas: list[dict[str, Any]], level: Level, text: str
) -> None:
    verdict = judge({**GOOD, "host": "a", "database": REACHED}, ONE, 4, NOW, replicas)
    assert verdict.level is level
    assert verdict.text == f"this replica (a): serving 4 machines; 1 of 1 base image is ready{text}"
