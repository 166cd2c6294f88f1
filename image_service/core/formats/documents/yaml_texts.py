"""YAML of mappings, lists and texts: no scalar becomes a number, a date or a boolean."""

from __future__ import annotations

import yaml

from image_service.core.errors import FormatError

MAX_NODES = 10_000


def parse_yaml(content: str | bytes) -> object:
    """Return the document; raise FormatError with the place, and without the content.

    The parser is the one in Python: the one in C follows nested lists until its stack ends.
    """
    try:
        return yaml.load(content, _Loader)  # noqa: S506 - of texts, lists and mappings alone
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "it"
    except (yaml.YAMLError, ValueError, RecursionError):
        place = "it"
    raise FormatError(f"{place} is not YAML that can be read")


class _Loader(yaml.BaseLoader):
    """Converts no scalar, because numbers in base 60 take minutes, and merges no mappings."""

    _nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node, unless there were too many, each of which takes 1 KiB and 0.1 ms."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise FormatError(f"it has more than {MAX_NODES} nodes of YAML")
        return super().compose_node(parent, index)
