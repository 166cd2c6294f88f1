"""Verdicts of checks."""

from __future__ import annotations

import enum

import attrs


class Verdict(enum.Enum):
    """The result of a check; SKIP: it does not apply, or cannot be told."""

    OK = "ok"
    FAIL = "fail"
    SKIP = "skip"


@attrs.frozen
class Finding:
    """A verdict and its reason, a plain sentence without a full stop."""

    verdict: Verdict
    reason: str


@attrs.frozen
class CheckResult:
    """The finding of a check by its name."""

    name: str
    verdict: Verdict
    reason: str


class CannotTell(Exception):
    """A fact that a check needs cannot be read, or is not there; its text is the reason."""


def ok(reason: str) -> Finding:
    """Return that the disk fits."""
    return Finding(Verdict.OK, reason)


def fail(reason: str) -> Finding:
    """Return that the disk does not fit."""
    return Finding(Verdict.FAIL, reason)
