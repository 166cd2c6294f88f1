"""Values of the shapes of botocore's model of EC2, for hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from image_service.jobs.ec2.ec2_api import ec2_model

if TYPE_CHECKING:
    from botocore.model import OperationModel, Shape

# XML can represent them, and a parser of XML keeps them.
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=20)


_OTHERS: dict[str, st.SearchStrategy[Any]] = {
    "double": st.decimals(-(10**9), 10**9, places=3).map(float),
    "timestamp": st.sampled_from(["2026-11-23T12:00:00Z", "1999-12-31T23:59:59Z"]),
}


def operation_model(name: str) -> OperationModel:
    """Return the model of an operation."""
    return ec2_model().operation_model(name)


def values_of(shape: Shape, *, min_items: int = 0) -> st.SearchStrategy[Any]:
    """Return values of a shape.

    Args:
        shape: of the values.
        min_items: of lists and optional structures: an empty one cannot be in a request.
    """
    if shape.type_name == "structure":
        members = {key: values_of(member, min_items=min_items) for key, member in shape.members.items()}
        required = {key: members.pop(key) for key in shape.required_members}
        structures = st.fixed_dictionaries(required, optional=members)
        return structures.filter(len) if min_items else structures
    if shape.type_name == "list":
        return st.lists(values_of(shape.member, min_items=min_items), min_size=min_items, max_size=3)
    if shape.type_name == "boolean":
        return st.booleans()
    if shape.type_name in {"integer", "long"}:
        limits = shape.metadata
        return st.integers(limits.get("min", -(10**18) + 1), limits.get("max", 10**18 - 1))
    return _OTHERS.get(shape.type_name, TEXTS)
