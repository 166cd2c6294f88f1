"""The Range field (RFC 9110 section 14) for the one unit that boot images have: bytes."""

from __future__ import annotations

import re
from typing import TypeAlias

# RFC 9110 14.1.1:  ranges-specifier = range-unit "=" range-set ; range-set = 1#range-spec
#   int-range = first-pos "-" [ last-pos ] ; suffix-range = "-" suffix-length ; each 1*DIGIT
# Any other range-spec makes the header invalid for this unit, and an invalid header is ignored (14.2).
_RANGES = re.compile(r"bytes=(.*)", re.ASCII | re.IGNORECASE | re.DOTALL)
_SPEC = re.compile(r"([0-9]*)-([0-9]*)", re.ASCII)
_SINGLE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})", re.ASCII)
_CHARACTERS = re.compile(r"bytes=[0-9, -]{1,180}", re.ASCII)
_CONVERSIONS = re.compile(r"bytes=%?[a-z]{1,3}-%?[a-z]{0,3}", re.ASCII)
_OWS = " \t"
_DIGITS = 18
_BEYOND = 10**_DIGITS  # past the end of anything; longer numbers mean no more than that

MAX_RANGES = 16

INT_RANGE = re.compile(rb"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")
"""A canonical int-range: first-pos and last-pos, without leading zeros."""

ByteRange: TypeAlias = tuple[int, int]
"""Offset of the first byte, offset behind the last."""


def format_int_range(first: int, last: int) -> str:
    """Return the Range field value of one int-range."""
    return f"bytes={first}-{last}"


def clamp(first: int, last: int, size: int) -> ByteRange | None:
    """Return an int-range's bytes of a representation; None if it is malformed or unsatisfiable.

    Args:
        first: first-pos, at least 0.
        last: last-pos; may lie behind the end, or before `first`.
        size: of the representation, bytes.
    """
    stop = last + 1 if last < size else size
    return (first, stop) if first < stop else None


def has_range_characters(value: str) -> bool:
    """Return True if a field value is short and made of a byte range's characters: safe to log."""
    return _CHARACTERS.fullmatch(value) is not None


def has_conversion(value: str) -> bool:
    """Return True if a field has the rest of a conversion in place of numbers: ``u-u`` of ``%zu-%zu``."""
    return _CONVERSIONS.fullmatch(value) is not None


def parse_range(value: str, size: int) -> tuple[ByteRange, ...] | None:
    """Resolve a Range field against a representation.

    Args:
        size: of the representation, bytes.

    Returns:
        disjoint, non-empty ranges inside the representation, in the order of the request, overlapping and
        adjacent ones joined; empty if none is satisfiable (416); None if the field is to be ignored
        (another unit, malformed, more than `MAX_RANGES` ranges).
    """
    single = _SINGLE.fullmatch(value)
    if single is not None:
        first, last = int(single[1]), int(single[2])
        if last < first:
            return None
        span = clamp(first, last, size)
        return () if span is None else (span,)
    specifier = _RANGES.fullmatch(value)
    if specifier is None:
        return None
    specs = [spec for spec in (spec.strip(_OWS) for spec in specifier[1].split(",")) if spec]  # 5.6.1.2
    if not 0 < len(specs) <= MAX_RANGES:
        return None
    ranges: list[ByteRange] = []
    for spec in specs:
        resolved = _resolve(spec, size)
        if resolved is None:
            return None
        if resolved[0] < resolved[1]:
            ranges = _join(ranges, resolved)
    return tuple(ranges)


def _resolve(spec: str, size: int) -> ByteRange | None:
    """Return one range-spec as a byte range, empty if unsatisfiable; None if malformed."""
    match = _SPEC.fullmatch(spec)
    if match is None or match[0] == "-":
        return None
    first, last = (digits.lstrip("0") for digits in match.groups())
    if not match[1]:
        return max(0, size - _number(last)), size
    start = _number(first)
    if not match[2]:
        return start, max(start, size)
    if (len(last), last) < (len(first), first):  # compares numbers of any length
        return None
    return start, max(start, min(_number(last) + 1, size))


def _number(digits: str) -> int:
    """Return the value of digits without leading zeros, at most `_BEYOND`."""
    return _BEYOND if len(digits) > _DIGITS else int(digits or "0")


def _join(ranges: list[ByteRange], added: ByteRange) -> list[ByteRange]:
    """Add a range, joined with those it touches or overlaps, at the position of the earliest of them."""
    start, stop = added
    position = len(ranges)
    separate: list[ByteRange] = []
    for other_start, other_stop in ranges:
        if other_start <= stop and start <= other_stop:
            start, stop, position = (
                min(start, other_start),
                max(stop, other_stop),
                min(position, len(separate)),
            )
        else:
            separate.append((other_start, other_stop))
    separate.insert(position, (start, stop))
    return separate
