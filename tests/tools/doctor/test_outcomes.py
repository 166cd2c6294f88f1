from __future__ import annotations

import json

from image_service.tools.doctor.outcomes import (
    complete,
    failed,
    has_failed,
    passed,
    render_by_status,
    render_json,
    render_outcome,
    render_summary,
    skipped,
    warned,
    worst,
)

OUTCOMES = [
    passed("tcp", "open"),
    warned("dns", "a name", "use an address"),
    failed("head", "404", "correct the URL"),
    skipped("tls", "the URL is http"),
]


def test_document_has_name_status_and_detail_with_the_remedy() -> None:
    checks = json.loads(render_json(OUTCOMES))["checks"]
    assert [list(check.values()) for check in checks] == [
        ["tcp", "ok", "open"],
        ["dns", "warn", "a name; use an address"],
        ["head", "fail", "404; correct the URL"],
        ["tls", "skip", "the URL is http"],
    ]


def test_text_is_wrapped_to_the_terminal_and_printable() -> None:
    text = render_outcome(failed("head", f"a \x1b[31m{' word' * 30}", "look"), 70)
    assert text.startswith("✗ head")
    assert text.splitlines()[-1].strip() == "→ look"
    assert all(len(line) <= 70 for line in text.splitlines())
    assert "\x1b" not in text


def test_failures_are_first_and_passes_in_one_line() -> None:
    assert render_by_status([*OUTCOMES, passed("etag", "strong")], 70).splitlines() == [
        "✗ head                404",
        "                      → correct the URL",
        "! dns                 a name",
        "                      → use an address",
        "✓ 2 passed: tcp, etag",
        "- 1 skipped: tls",
    ]
    assert render_by_status(OUTCOMES[:1], 70) == "✓ 1 passed: tcp\n"


def test_summary_counts_and_judges() -> None:
    assert render_summary(OUTCOMES).startswith("1 ok, 1 warning, 1 failed, 1 skipped: a machine will not")
    assert "some machines may not" in render_summary(OUTCOMES[:2])
    assert "no check found a reason against" in render_summary(OUTCOMES[:1])
    assert has_failed(OUTCOMES)
    assert not has_failed(OUTCOMES[:2])


def test_missing_checks_are_skipped_with_the_last_failure() -> None:
    completed = list(complete(OUTCOMES, ["tcp", "ranges"]))
    assert completed[:-1] == OUTCOMES
    assert completed[-1] == skipped("ranges", "not reached: head has failed")


def test_worst_outcome_is_a_failure_before_a_warning() -> None:
    assert worst(OUTCOMES) == OUTCOMES[2]
    assert worst([OUTCOMES[3], OUTCOMES[0]]) == OUTCOMES[3]
    assert worst([]) is None
