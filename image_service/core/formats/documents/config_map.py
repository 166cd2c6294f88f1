"""ConfigMaps of Kubernetes, in JSON or YAML. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from image_service.core.errors import FormatError
from image_service.core.formats.documents.json_document import NOT_JSON, read_json
from image_service.core.formats.documents.yaml_texts import parse_yaml

MAX_BYTES = 2 * 1024 * 1024
"""Kubernetes stores objects of at most 1.5 MiB."""


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


def _is_config_map(document: object) -> bool:
    return isinstance(document, Mapping) and document.get("kind") == "ConfigMap"


def _read_yaml(text: bytes) -> object:
    """Return a document in YAML, whose scalars are texts; None if it is not one that can be read."""
    if len(text) > MAX_BYTES or b"ConfigMap" not in text:
        return None
    try:
        return parse_yaml(text)
    except FormatError:
        return None
