"""Tags of export tasks, and the filters that select tasks."""

from __future__ import annotations

from typing import Any

import pytest

from image_service.jobs.conversion_tasks.filters import parse_filters, parse_tags
from image_service.jobs.ec2.errors import Ec2Error

NAMES = ("export-task-id", "state", "description")
TASKS: list[dict[str, Any]] = [
    {
        "export-task-id": f"export-i-{number}",
        "state": state,
        "description": f"a*b{number}",
        "tags": {"owner": owner},
    }
    for number, (state, owner) in enumerate([("active", "ann"), ("completed", "bob"), ("active", "[x]")])
]


RESOURCE_TYPE = "export-instance-task"


def selected(*filters: tuple[str, list[str]]) -> list[str]:
    parsed = parse_filters([{"Name": name, "Values": values} for name, values in filters], NAMES)
    return [
        task["export-task-id"][-1]
        for task in TASKS
        if all(
            each.matches([task[each.name]]) if each.name in NAMES else each.matches_tags(task["tags"])
            for each in parsed
        )
    ]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], "012"),
        ([("state", ["active"])], "02"),
        ([("state", ["active", "completed"])], "012"),
        ([("state", ["ACTIVE"])], ""),
        ([("state", [])], ""),
        ([("state", ["act*"]), ("tag:owner", ["?nn"])], "0"),
        ([("tag-key", ["own*"])], "012"),
        ([("tag:other", ["*"])], ""),
        ([("tag:owner", ["[x]"])], "2"),
        ([("description", [r"a\*b1"])], "1"),
        ([("description", [r"a\?b1"])], ""),
        ([("export-task-id", ["export-i-2"])], "2"),
        ([("description", ["*a" * 127])], ""),
    ],
    ids=range(13),
)
def test_tasks_match_every_filter(filters: list[tuple[str, list[str]]], expected: str) -> None:
    assert selected(*filters) == list(expected)


def test_unknown_filter_is_refused() -> None:
    with pytest.raises(Ec2Error, match="export-task-id, state") as refused:
        selected(("owner", ["x"]))
    assert refused.value.error_code == "InvalidParameterValue"


def test_filter_with_too_many_values_is_refused() -> None:
    assert selected(("state", ["active"] * 200)) == ["0", "2"]
    with pytest.raises(Ec2Error) as refused:
        selected(("state", ["active"] * 201))
    assert refused.value.error_code == "FilterLimitExceeded"


def test_filter_with_a_long_value_is_refused() -> None:
    assert selected(("description", ["x" * 255])) == []
    with pytest.raises(Ec2Error) as refused:
        selected(("description", ["x" * 256]))
    assert refused.value.error_code == "InvalidParameterValue"


def specification(*tags: tuple[str, str]) -> dict[str, Any]:
    return {
        "ResourceType": "export-instance-task",
        "Tags": [{"Key": key, "Value": value} for key, value in tags],
    }


def test_tags_of_all_specifications_count() -> None:
    assert parse_tags([specification(("a", "1")), specification(("b", ""))], RESOURCE_TYPE) == {
        "a": "1",
        "b": "",
    }
    assert parse_tags([], RESOURCE_TYPE) == {}


@pytest.mark.parametrize(
    ("specifications", "code"),
    [
        ([{"ResourceType": "image"}], "InvalidParameterValue"),
        ([specification(("", "x"))], "InvalidParameterValue"),
        ([specification(("aws:x", "x"))], "InvalidParameterValue"),
        ([specification(("k" * 129, "x"))], "InvalidParameterValue"),
        ([specification(("k", "x" * 257))], "InvalidParameterValue"),
        ([specification(("k", "x"), ("k", "y"))], "InvalidParameterValue"),
        ([specification(*((f"k{number}", "") for number in range(51)))], "TagLimitExceeded"),
    ],
    ids=range(7),
)
def test_wrong_tags_are_refused(specifications: list[dict[str, Any]], code: str) -> None:
    with pytest.raises(Ec2Error) as refused:
        parse_tags(specifications, RESOURCE_TYPE)
    assert refused.value.error_code == code


@pytest.mark.parametrize(
    ("value", "is_literal"), [("export-i-1", True), ("", True), ("a?", False), ("*", False), ("[x]", False)]
)
def test_literal_values_have_no_wildcard(value: str, *, is_literal: bool) -> None:
    (parsed,) = parse_filters([{"Name": "state", "Values": ["x", value]}], NAMES)
    assert parsed.is_literal is is_literal
