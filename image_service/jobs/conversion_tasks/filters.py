"""Tags of tasks, and the filters that select tasks. Pure."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from image_service.jobs.ec2.errors import Ec2Error, invalid_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MAX_TAGS = 50
_MAX_VALUES = 200
_MAX_KEY_CHARACTERS = 128
_MAX_VALUE_CHARACTERS = 256
_MAX_FILTER_CHARACTERS = 255  # of a value; comparing longer ones with long texts takes seconds
MAX_PAGE = 1000
"""Tasks in a reply, also without ``MaxResults``."""
EXPORT_TASK_FILTERS = {
    "export-task-id": "ExportTaskId",
    "state": "State",
    "description": "Description",
}
"""Members of an ``ExportTask`` by the names of filters."""
_TAG = "tag:"
_TAG_KEY = "tag-key"
_LITERAL = re.compile(r"\\([*?\\])|\[")


def parse_tags(specifications: Iterable[Mapping[str, Any]], resource_type: str) -> dict[str, str]:
    """Return the tags of ``TagSpecification``, values by keys.

    Args:
        resource_type: of the task, such as ``export-instance-task``.

    Raises:
        Ec2Error: a tag is invalid, or there are too many.
    """
    tags: dict[str, str] = {}
    for specification in specifications:
        if specification.get("ResourceType") != resource_type:
            raise invalid_value(f"TagSpecification.ResourceType must be {resource_type}")
        for tag in specification.get("Tags", ()):
            key, value = tag.get("Key", ""), tag.get("Value", "")
            if not 1 <= len(key) <= _MAX_KEY_CHARACTERS or key.lower().startswith("aws:"):
                raise invalid_value(
                    f"the key of a tag must have 1 to {_MAX_KEY_CHARACTERS} characters, without aws: before"
                )
            if len(value) > _MAX_VALUE_CHARACTERS:
                raise invalid_value(
                    f"the value of a tag must have at most {_MAX_VALUE_CHARACTERS} characters"
                )
            if key in tags:
                raise invalid_value(f"the tag {key} is repeated")
            tags[key] = value
    if len(tags) > _MAX_TAGS:
        raise Ec2Error("TagLimitExceeded", f"there are {len(tags)} tags; a task has at most {_MAX_TAGS}")
    return tags


def select_tasks(
    tasks: Iterable[Mapping[str, Any]], filters: Sequence[Mapping[str, Any]], members: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Return the tasks that match every filter.

    Args:
        tasks: documents.
        filters: each matches a task that has one of its values, in which ``*`` stands for any characters and
            ``?`` for one.
        members: of the tasks, or of an object in them after a dot, by the names of filters.

    Raises:
        Ec2Error: a filter is unknown, or has too many values, or a long one.
    """
    for each in filters:
        name, number = each.get("Name", ""), len(each.get("Values", ()))
        if name not in {*members, _TAG_KEY} and not name.startswith(_TAG):
            raise invalid_value(
                f"the filter {name!a:.100} is invalid; filters are {', '.join(members)}, {_TAG_KEY} and"
                f" {_TAG}KEY"
            )
        if any(len(value) > _MAX_FILTER_CHARACTERS for value in each.get("Values", ())):
            raise invalid_value(f"a value of a filter must have at most {_MAX_FILTER_CHARACTERS} characters")
        if number > _MAX_VALUES:
            raise Ec2Error("FilterLimitExceeded", f"a filter has {number} values, of at most {_MAX_VALUES}")
    return [task for task in tasks if all(_matches(task, each, members) for each in filters)]


def _matches(task: Mapping[str, Any], wanted: Mapping[str, Any], members: Mapping[str, str]) -> bool:
    found = _values_of(task, wanted["Name"], members)
    patterns = [_pattern(value) for value in wanted.get("Values", ())]
    return any(fnmatchcase(value, pattern) for pattern in patterns for value in found)


def _values_of(task: Mapping[str, Any], name: str, members: Mapping[str, str]) -> list[str]:
    """Return the values that a task has for a filter."""
    if name == _TAG_KEY:
        return [tag["Key"] for tag in task["Tags"]]
    if name.startswith(_TAG):
        return [tag["Value"] for tag in task["Tags"] if tag["Key"] == name.removeprefix(_TAG)]
    value: Any = task
    for member in members[name].split("."):
        value = value[member]
    return [value]


def _pattern(value: str) -> str:
    """Return the pattern of a filter's value; a backslash makes the next wildcard literal."""
    return _LITERAL.sub(lambda found: f"[{found[1] or found[0]}]", value)


def page_of(
    tasks: Sequence[Mapping[str, Any]], id_member: str, parameters: Mapping[str, Any]
) -> tuple[Sequence[Mapping[str, Any]], str | None]:
    """Return the page of tasks that a request asks for, and the token of the next one; None: it is the last.

    Args:
        id_member: of the tasks; the token of a page is the id of its first task.
        parameters: ``MaxResults`` and ``NextToken`` count.

    Raises:
        Ec2Error: the token or the size is invalid.
    """
    size, token = min(parameters.get("MaxResults", MAX_PAGE), MAX_PAGE), parameters.get("NextToken")
    if size < 1 and "MaxResults" in parameters:
        raise invalid_value("MaxResults must be at least 1")
    ids = [task[id_member] for task in tasks]
    if token is not None and token not in ids:
        raise invalid_value("NextToken must be that of an earlier reply to the same request")
    first = 0 if token is None else ids.index(token)
    following = ids[first + size :]
    return tasks[first : first + size], following[0] if following else None
