"""ConfigMaps of Kubernetes, in JSON or YAML. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

import yaml

from image_service.core.errors import FormatError

MAX_BYTES = 2 * 1024 * 1024
"""Kubernetes stores objects of at most 1.5 MiB."""


def read_config_map(text: bytes) -> Mapping[str, str] | None:
    """Return ``data`` of a ConfigMap; None for another object in JSON.

    Raises:
        FormatError: it is neither JSON nor a ConfigMap in YAML, or its data are not texts.
    """
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError):
        document = _read_yaml(text)
        if not _is_config_map(document):
            raise FormatError("must be JSON in UTF-8, or a ConfigMap in YAML") from None
    if not isinstance(document, Mapping) or not _is_config_map(document):
        return None
    data = document.get("data") or {}
    if not isinstance(data, Mapping) or not all(isinstance(each, str) for each in (*data, *data.values())):
        raise FormatError("data of a ConfigMap must be an object of texts")
    return data


def _is_config_map(document: object) -> bool:
    return isinstance(document, Mapping) and document.get("kind") == "ConfigMap"


def _read_yaml(text: bytes) -> object:
    """Return a document in YAML; None if it is not one that can be read.

    The parser is the one in Python: the one in C follows nested lists until its stack ends.
    """
    if len(text) > MAX_BYTES or b"ConfigMap" not in text:
        return None
    try:
        found: object = yaml.load(text, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return found
