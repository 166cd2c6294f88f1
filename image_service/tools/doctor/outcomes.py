"""The outcomes of checks, for people and for programs."""

from __future__ import annotations

import json
import textwrap
from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

from image_service.common.command_line.parser import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_NAME_WIDTH = 20
_INDENT = " " * (_NAME_WIDTH + 2)


class CheckStatus(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"  # not applicable, or not known


_SYMBOLS = {CheckStatus.OK: "✓", CheckStatus.WARN: "!", CheckStatus.FAIL: "✗", CheckStatus.SKIP: "-"}


@attrs.frozen
class CheckOutcome:
    """The outcome of one check.

    Args:
        name: stable; programs rely on it.
        detail: the fact, with the source of the limit that it is compared with.
        remedy: the next step of the user; "" if none is needed.
    """

    name: str
    status: CheckStatus
    detail: str
    remedy: str = ""


def passed(name: str, detail: str) -> CheckOutcome:
    """Return the outcome of a check that has found nothing wrong."""
    return CheckOutcome(name, CheckStatus.OK, detail)


def warned(name: str, detail: str, remedy: str) -> CheckOutcome:
    """Return the outcome of a check whose finding stops some machines."""
    return CheckOutcome(name, CheckStatus.WARN, detail, remedy)


def failed(name: str, detail: str, remedy: str) -> CheckOutcome:
    """Return the outcome of a check whose finding stops machines."""
    return CheckOutcome(name, CheckStatus.FAIL, detail, remedy)


def skipped(name: str, reason: str) -> CheckOutcome:
    """Return the outcome of a check that does not apply, or whose answer is not known."""
    return CheckOutcome(name, CheckStatus.SKIP, reason)


def worst(outcomes: Sequence[CheckOutcome]) -> CheckOutcome | None:
    """Return the outcome with the worst status, the first of equals; None if there is none."""
    order = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.SKIP, CheckStatus.OK)
    return min(outcomes, key=lambda outcome: order.index(outcome.status), default=None)


def render_outcome(outcome: CheckOutcome, width: int) -> str:
    """Return the lines of an outcome for people, with a newline at the end.

    Args:
        width: columns of the terminal.
    """
    head = f"{_SYMBOLS[outcome.status]} {outcome.name:{_NAME_WIDTH}}"
    lines = _wrap(head, outcome.detail, width)
    if outcome.remedy:
        lines += _wrap(f"{_INDENT}→ ", outcome.remedy, width)
    return "".join(f"{line}\n" for line in lines)


def render_by_status(outcomes: Sequence[CheckOutcome], width: int) -> str:
    """Return the lines of failures, then of warnings; one line has the names of the checks that passed.

    Args:
        width: columns of the terminal.
    """
    text = ""
    for status in (CheckStatus.FAIL, CheckStatus.WARN):
        text += "".join(render_outcome(each, width) for each in outcomes if each.status is status)
    for status, what in ((CheckStatus.OK, "passed"), (CheckStatus.SKIP, "skipped")):
        if names := [each.name for each in outcomes if each.status is status]:
            text += f"{_SYMBOLS[status]} {len(names)} {what}: {', '.join(names)}\n"
    return text


def _wrap(head: str, text: str, width: int) -> list[str]:
    width = max(width, len(_INDENT) + 40)
    return textwrap.wrap(f"{head}{printable(text)}", width, subsequent_indent=_INDENT, break_on_hyphens=False)


def describe_verdict(outcomes: Iterable[CheckOutcome]) -> str:
    """Return what the outcomes say about a boot, together."""
    statuses = {outcome.status for outcome in outcomes}
    if CheckStatus.FAIL in statuses:
        return "a machine will not boot from this URL"
    if CheckStatus.WARN in statuses:
        return "some machines may not boot from this URL"
    return "no check found a reason against booting from this URL"


def render_summary(outcomes: Sequence[CheckOutcome]) -> str:
    """Return the last line for people."""
    counts = {status: sum(outcome.status is status for outcome in outcomes) for status in CheckStatus}
    warnings = "warning" if counts[CheckStatus.WARN] == 1 else "warnings"
    words = {CheckStatus.FAIL: "failed", CheckStatus.WARN: warnings, CheckStatus.SKIP: "skipped"}
    text = ", ".join(f"{counts[status]} {words.get(status, status)}" for status in CheckStatus)
    return f"{text}: {describe_verdict(outcomes)}\n"


def describe_checks(outcomes: Iterable[CheckOutcome]) -> Sequence[Mapping[str, str]]:
    """Return the outcomes for programs."""
    return [
        {
            "name": outcome.name,
            "status": str(outcome.status),
            "detail": f"{outcome.detail}; {outcome.remedy}" if outcome.remedy else outcome.detail,
        }
        for outcome in outcomes
    ]


def render_json(outcomes: Iterable[CheckOutcome]) -> str:
    """Return the document for programs, with a newline at the end."""
    return json.dumps({"checks": describe_checks(outcomes)}, indent=2) + "\n"


def has_failed(outcomes: Iterable[CheckOutcome]) -> bool:
    """Return True if a check has failed."""
    return any(outcome.status is CheckStatus.FAIL for outcome in outcomes)


def complete(outcomes: Iterable[CheckOutcome], names: Iterable[str]) -> Iterator[CheckOutcome]:
    """Yield the outcomes, and then a skipped one for each name that has none."""
    missing = dict.fromkeys(names)
    cause = ""
    for outcome in outcomes:
        missing.pop(outcome.name, None)
        if outcome.status is CheckStatus.FAIL:
            cause = outcome.name
        yield outcome
    for name in missing:
        yield skipped(name, f"not reached: {cause} has failed")
