"""Values of the model as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs
import sqlalchemy as sa


class Document(sa.TypeDecorator[object]):
    """Values of the model, mappings and lists as JSON text; None is NULL."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: object, dialect: sa.Dialect) -> str | None:
        """Return JSON."""
        del dialect
        return None if value is None else json.dumps(value, default=_jsonable)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> object:
        """Return the value of the JSON. Damaged JSON is returned as text, which `values` refuses."""
        del dialect
        try:
            return None if value is None else json.loads(value)
        except (RecursionError, TypeError, ValueError):
            return value


def canonical_json(value: object) -> bytes:
    """Return the same JSON for a value of the model as for what `Document` reads of it."""
    return json.dumps(value, default=_jsonable, sort_keys=True).encode()


def _jsonable(value: object) -> dict[str, object]:
    if isinstance(value, Mapping):
        return dict(value)
    kind = type(value)
    if attrs.has(kind):
        return {field.name: getattr(value, field.name) for field in attrs.fields(kind)}
    raise TypeError(f"{kind.__name__} has no form in JSON")
