"""Tags of export tasks, and the filters that select tasks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.jobs.conversion_tasks.filters import (
    EXPORT_TASK_FILTERS,
    MAX_PAGE,
    page_of,
    parse_tags,
    select_tasks,
)
from image_service.jobs.ec2.errors import Ec2Error

TASKS: list[dict[str, Any]] = [
    {
        "ExportTaskId": f"export-i-{number}",
        "State": state,
        "Description": f"a*b{number}",
        "Tags": [{"Key": "owner", "Value": owner}],
    }
    for number, (state, owner) in enumerate([("active", "ann"), ("completed", "bob"), ("active", "[x]")])
]


RESOURCE_TYPE = "export-instance-task"


def selected(*filters: tuple[str, list[str]]) -> list[str]:
    found = select_tasks(
        TASKS, [{"Name": name, "Values": values} for name, values in filters], EXPORT_TASK_FILTERS
    )
    return [task["ExportTaskId"][-1] for task in found]


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


@given(st.integers(1, 5), st.integers(0, 12))
def test_pages_have_all_tasks_once(size: int, number: int) -> None:
    tasks = [{"Id": str(each)} for each in range(number)]
    parameters: dict[str, Any] = {"MaxResults": size}
    found: list[Any] = []
    while True:
        page, token = page_of(tasks, "Id", parameters)
        assert len(page) <= size
        found += page
        if token is None:
            break
        parameters["NextToken"] = token
    assert found == tasks


@pytest.mark.parametrize("parameters", [{}, {"MaxResults": MAX_PAGE + 1}])
def test_pages_have_a_most_size(parameters: dict[str, Any]) -> None:
    tasks = [{"Id": str(each)} for each in range(MAX_PAGE + 1)]
    assert page_of(tasks, "Id", parameters) == (tasks[:-1], str(MAX_PAGE))


@pytest.mark.parametrize("parameters", [{"MaxResults": 0}, {"MaxResults": -1}, {"NextToken": "x"}])
def test_wrong_pages_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(Ec2Error) as refused:
        page_of([{"Id": "1"}], "Id", parameters)
    assert refused.value.error_code == "InvalidParameterValue"
