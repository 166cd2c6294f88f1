"""ConfigMaps of Kubernetes, in JSON or YAML. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from image_service.core.errors import FormatError
from image_service.core.formats.documents.json_document import NOT_JSON, read_json

MAX_BYTES = 2 * 1024 * 1024
"""Kubernetes stores objects of at most 1.5 MiB."""
_MAX_NODES = 10_000


def read_config_map(text: bytes) -> Mapping[str, str] | None:
    """Return ``data`` of a ConfigMap; None for another object in JSON.

    Raises:
        FormatError: it is neither JSON nor a ConfigMap in YAML, or its data are not texts.
    """
    try:
        document = read_json(text)
    except FormatError as error:
        document = _read_yaml(text)
        if not _is_config_map(document):
            may_be_yaml = ", or a ConfigMap in YAML" if error.detail == NOT_JSON else ""
            raise FormatError(f"{error.detail}{may_be_yaml}") from None
    if not isinstance(document, Mapping) or not _is_config_map(document):
        return None
    data = document.get("data") or {}
    if not isinstance(data, Mapping) or not all(isinstance(each, str) for each in (*data, *data.values())):
        raise FormatError("data of a ConfigMap must be an object of texts")
    return data


class _Loader(yaml.BaseLoader):
    """Converts no scalar, because numbers in base 60 take minutes, and merges no mappings."""

    _nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node, unless there were too many, each of which takes 1 KiB and 0.1 ms."""
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise yaml.YAMLError("too many nodes")
        return super().compose_node(parent, index)


def _is_config_map(document: object) -> bool:
    return isinstance(document, Mapping) and document.get("kind") == "ConfigMap"


def _read_yaml(text: bytes) -> object:
    """Return a document in YAML, whose scalars are texts; None if it is not one that can be read.

    The parser is the one in Python: the one in C follows nested lists until its stack ends.
    """
    if len(text) > MAX_BYTES or b"ConfigMap" not in text:
        return None
    try:
        found: object = yaml.load(text, _Loader)  # noqa: S506 - of texts, lists and mappings alone
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return found
