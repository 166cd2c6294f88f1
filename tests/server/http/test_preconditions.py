from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.server.http.preconditions import Outcome, evaluate, range_applies

if TYPE_CHECKING:
    from collections.abc import Callable

ETAG = '"0123456789abcdef"'
MODIFIED = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
SECOND = timedelta(seconds=1)

PERFORM, NOT_MODIFIED, FAILED = Outcome.PERFORM, Outcome.NOT_MODIFIED, Outcome.FAILED


def imf(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)


def rfc850(moment: datetime) -> str:
    return f"{moment:%A, %d-%b-%y %H:%M:%S} GMT"


def asctime(moment: datetime) -> str:
    return time.asctime(moment.timetuple())


# The decision table of RFC 9110 section 13.2.2, all of it: each field absent, true, false or malformed.

ABSENT = "absent"
IF_MATCH = {ABSENT: None, "true": ETAG, "false": '"other"', "malformed": "x"}
IF_UNMODIFIED_SINCE = {ABSENT: None, "true": imf(MODIFIED), "false": imf(MODIFIED - SECOND), "malformed": "x"}
IF_NONE_MATCH = {ABSENT: None, "true": '"other"', "false": ETAG, "malformed": "x"}
IF_MODIFIED_SINCE = {ABSENT: None, "true": imf(MODIFIED - SECOND), "false": imf(MODIFIED), "malformed": "x"}


def by_13_2_2(match: str, unmodified: str, none_match: str, modified: str) -> Outcome:
    """The steps, for GET and HEAD, in the order and nearly the words of the section."""
    # 1. When recipient is the origin server and If-Match is present, evaluate the If-Match precondition.
    if match in {"false", "malformed"}:
        return FAILED
    # 2. When If-Match is not present and If-Unmodified-Since is present (13.1.4: a date), evaluate it.
    if match == ABSENT and unmodified == "false":
        return FAILED
    # 3. When If-None-Match is present, evaluate it: if false for GET/HEAD, respond 304.
    if none_match == "false":
        return NOT_MODIFIED
    # 4. When the method is GET or HEAD, If-None-Match is not present, and If-Modified-Since is (a date).
    if none_match == ABSENT and modified == "false":
        return NOT_MODIFIED
    return PERFORM


@pytest.mark.parametrize(
    ("match", "unmodified", "none_match", "modified"),
    list(product(IF_MATCH, IF_UNMODIFIED_SINCE, IF_NONE_MATCH, IF_MODIFIED_SINCE)),
)
def test_preconditions_follow_the_decision_table(
    match: str, unmodified: str, none_match: str, modified: str
) -> None:
    fields = {
        "if-match": IF_MATCH[match],
        "if-unmodified-since": IF_UNMODIFIED_SINCE[unmodified],
        "if-none-match": IF_NONE_MATCH[none_match],
        "if-modified-since": IF_MODIFIED_SINCE[modified],
    }
    headers = {name: value for name, value in fields.items() if value is not None}
    assert evaluate(headers, ETAG, MODIFIED) is by_13_2_2(match, unmodified, none_match, modified)


@pytest.mark.parametrize(("match", "none_match"), list(product(IF_MATCH, IF_NONE_MATCH)))
@pytest.mark.parametrize("since", [imf(MODIFIED - SECOND), imf(MODIFIED), imf(MODIFIED + SECOND)])
def test_date_conditions_are_ignored_without_a_known_date(match: str, none_match: str, since: str) -> None:
    fields = {"if-match": IF_MATCH[match], "if-none-match": IF_NONE_MATCH[none_match]}
    headers = {name: value for name, value in fields.items() if value is not None}
    dated = {**headers, "if-unmodified-since": since, "if-modified-since": since}
    assert evaluate(dated, ETAG, None) is evaluate(headers, ETAG, None)
    assert evaluate(headers, ETAG, None) is by_13_2_2(match, ABSENT, none_match, ABSENT)


def test_request_without_conditions_is_performed() -> None:
    assert evaluate({}, ETAG, MODIFIED) is PERFORM
    assert evaluate({"range": "bytes=0-1", "if-range": '"other"'}, ETAG, MODIFIED) is PERFORM


# Strong comparison for If-Match, weak for If-None-Match (8.8.3.2, 13.1.1, 13.1.2).

LISTS = [
    # field value, holds the tag strongly, holds the tag weakly
    (ETAG, True, True),
    ("*", True, True),
    (" * ", True, True),
    (f"W/{ETAG}", False, True),
    (f'"a", {ETAG}', True, True),
    (f'{ETAG}, "a"', True, True),
    (f'"a",{ETAG},"b"', True, True),
    (f'"a" ,\t{ETAG} , W/"b"', True, True),
    (f'"a", W/{ETAG}', False, True),
    (f",, {ETAG},", True, True),
    (f'"a,b", {ETAG}', True, True),
    (f'"*", {ETAG}', True, True),
    ('"\xe4", "!#~"', False, False),
    ('"other"', False, False),
    ('"*"', False, False),
    ('""', False, False),
    ('W/""', False, False),
    (ETAG.upper(), False, False),
    (ETAG.replace("a", "b"), False, False),
    # Malformed: nothing in it counts.
    (f"w/{ETAG}", False, False),
    (f"W /{ETAG}", False, False),
    (f"*, {ETAG}", False, False),
    (f"{ETAG}, *", False, False),
    (f'"a" {ETAG}', False, False),
    (f'"a"{ETAG}', False, False),
    (f'"a";{ETAG}', False, False),
    (f"{ETAG}, x", False, False),
    (f'{ETAG}, "', False, False),
    (f'"a b", {ETAG}', False, False),
    (f"x{ETAG}", False, False),
    (f"{ETAG}x", False, False),
    (f"{ETAG}\n", False, False),
    (ETAG.strip('"'), False, False),
    (ETAG.replace('"', "'"), False, False),
    (f'"{ETAG}"', False, False),
    ("**", False, False),
    (",", False, False),
    ("", False, False),
]


@pytest.mark.parametrize(("field", "strong", "weak"), LISTS)
def test_entity_tag_lists_are_compared(field: str, *, strong: bool, weak: bool) -> None:
    assert evaluate({"if-match": field}, ETAG, None) is (PERFORM if strong else FAILED)
    assert evaluate({"if-none-match": field}, ETAG, None) is (NOT_MODIFIED if weak else PERFORM)


tags = st.builds(
    "{}{}".format,
    st.sampled_from(["", "W/"]),
    st.text(st.characters(codec="latin-1", exclude_characters='"', min_codepoint=0x21)).map('"{}"'.format),
).filter(lambda tag: "\x7f" not in tag)


@given(
    st.lists(tags | st.sampled_from([ETAG, f"W/{ETAG}"]), min_size=1), st.sampled_from([",", ", ", "\t,,"])
)
def test_any_well_formed_list_is_parsed(listed: list[str], separator: str) -> None:
    field = separator.join(listed).strip()
    assert evaluate({"if-match": field}, ETAG, None) is (PERFORM if ETAG in listed else FAILED)
    weakly = ETAG in listed or f"W/{ETAG}" in listed
    assert evaluate({"if-none-match": field}, ETAG, None) is (NOT_MODIFIED if weakly else PERFORM)


@given(st.text(st.characters(codec="latin-1")) | st.text('W/", *a'))
def test_any_text_is_evaluated_without_error(text: str) -> None:
    names = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range")
    for name in names:
        evaluate({name: text}, ETAG, MODIFIED)
        range_applies({name: text}, ETAG, MODIFIED)


@pytest.mark.parametrize("piece", [" ", "\t", ",", " ,", '"a",', '"a" ', 'W/"', '"'])
def test_hostile_list_is_parsed_in_linear_time(piece: str) -> None:
    """With backtracking it would not end before the test's timeout."""
    hostile = piece * (32_000 // len(piece)) + "x"
    assert evaluate({"if-match": hostile}, ETAG, None) is FAILED


# Dates (13.1.3, 13.1.4), in all three forms.


@pytest.mark.parametrize("written", [imf, rfc850, asctime])
@pytest.mark.parametrize(
    ("offset", "since", "unmodified"),
    [(-SECOND, PERFORM, FAILED), (0 * SECOND, NOT_MODIFIED, PERFORM), (SECOND, NOT_MODIFIED, PERFORM)],
)
def test_dates_are_compared_to_the_second(
    written: Callable[[datetime], str], offset: timedelta, since: Outcome, unmodified: Outcome
) -> None:
    text = written(MODIFIED + offset)
    assert evaluate({"if-modified-since": text}, ETAG, MODIFIED) is since
    assert evaluate({"if-unmodified-since": text}, ETAG, MODIFIED) is unmodified


@pytest.mark.parametrize("text", ["", "x", f"W/{ETAG}", ETAG, "0", f"{imf(MODIFIED)}, {imf(MODIFIED)}"])
def test_malformed_date_is_no_condition(text: str) -> None:
    """UEFI firmware puts a weak validator into If-Unmodified-Since."""
    assert evaluate({"if-modified-since": text}, ETAG, MODIFIED) is PERFORM
    assert evaluate({"if-unmodified-since": text}, ETAG, MODIFIED) is PERFORM


# If-Range (13.1.5).


@pytest.mark.parametrize(
    ("validator", "applies"),
    [
        (ETAG, True),
        (f"W/{ETAG}", False),
        ('"other"', False),
        (ETAG.strip('"'), False),
        (f'{ETAG}, "other"', False),
        ("*", False),
        ("", False),
        (imf(MODIFIED), True),
        (rfc850(MODIFIED), True),
        (asctime(MODIFIED), True),
        (imf(MODIFIED - SECOND), False),
        (imf(MODIFIED + SECOND), False),
        (f"{imf(MODIFIED)} ", False),
        (MODIFIED.isoformat(), False),
    ],
)
def test_if_range_must_match_exactly(validator: str, *, applies: bool) -> None:
    assert range_applies({"if-range": validator}, ETAG, MODIFIED) is applies


@pytest.mark.parametrize("validator", [imf(MODIFIED), "", "x"])
def test_if_range_never_matches_an_unknown_date(validator: str) -> None:
    assert not range_applies({"if-range": validator}, ETAG, None)


def test_range_applies_without_if_range() -> None:
    assert range_applies({}, ETAG, MODIFIED)
    assert range_applies({}, ETAG, None)
