"""Tags of tasks, and the filters that select tasks. Pure."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import attrs

from image_service.jobs.ec2.errors import Ec2Error, invalid_value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_MAX_TAGS = 50
_MAX_VALUES = 200
_MAX_KEY_CHARACTERS = 128
_MAX_VALUE_CHARACTERS = 256
_MAX_FILTER_CHARACTERS = 255  # of a value; comparing longer ones with long texts takes seconds
_TAG = "tag:"
_TAG_KEY = "tag-key"
_SPECIAL = frozenset("*?[")
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


@attrs.frozen
class RequestFilter:
    """A filter of a request.

    Args:
        patterns: in which ``*`` stands for any characters, ``?`` for one, and ``[`` begins a set.
    """

    name: str
    patterns: tuple[str, ...]

    def matches(self, values: Iterable[str]) -> bool:
        """Return True if one of the values matches one of the patterns."""
        return any(fnmatchcase(value, pattern) for value in values for pattern in self.patterns)

    @property
    def is_literal(self) -> bool:
        """True if the patterns are the values that match."""
        return not any(_SPECIAL.intersection(pattern) for pattern in self.patterns)

    def matches_tags(self, tags: Mapping[str, Any]) -> bool:
        """Return True if the tags of a task match a filter of tags."""
        if self.name == _TAG_KEY:
            return self.matches(tags)
        key = self.name.removeprefix(_TAG)
        return key in tags and self.matches([tags[key]])


def parse_filters(filters: Sequence[Mapping[str, Any]], names: Collection[str]) -> list[RequestFilter]:
    r"""Return the filters of a request; a task must match each.

    Args:
        filters: with values in which ``*`` and ``?`` are wildcards, ``\\*`` and ``\\?`` are not.
        names: of filters, beside those of tags.

    Raises:
        Ec2Error: a filter is unknown, or has too many values, or a long one.
    """
    parsed = []
    for each in filters:
        name, values = each.get("Name", ""), each.get("Values", ())
        if name not in {*names, _TAG_KEY} and not name.startswith(_TAG):
            raise invalid_value(
                f"the filter {name!a:.100} is invalid; filters are {', '.join(names)}, {_TAG_KEY} and"
                f" {_TAG}KEY"
            )
        if any(len(value) > _MAX_FILTER_CHARACTERS for value in values):
            raise invalid_value(f"a value of a filter must have at most {_MAX_FILTER_CHARACTERS} characters")
        if len(values) > _MAX_VALUES:
            raise Ec2Error(
                "FilterLimitExceeded", f"a filter has {len(values)} values, of at most {_MAX_VALUES}"
            )
        parsed.append(RequestFilter(name, tuple(map(_pattern, values))))
    return parsed


def _pattern(value: str) -> str:
    """Return the pattern of a filter's value; a backslash makes the next wildcard literal."""
    return _LITERAL.sub(lambda found: f"[{found[1] or found[0]}]", value)
