"""Conversion of values to rows, and of rows to values."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import RowNotAuthentic
from image_service.jobs.database.documents import Document
from image_service.jobs.database.sealing import RowCipher
from image_service.jobs.database.tables import Instant
from image_service.jobs.model import ComposeState, ImageCustomization, JobError, UploadResult, UploadTarget

DIALECT: Any = None  # the types do the same for each
CUSTOMIZATIONS = st.builds(
    ImageCustomization,
    ignition=st.none() | st.binary(max_size=100),
    firstboot_url=st.none() | st.text(max_size=20),
    kernel_arguments=st.lists(st.text(max_size=20)).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=10),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=10,
)


@given(st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - of hypothesis, with a zone of its own
def test_instant_is_read_to_the_microsecond(instant: datetime) -> None:
    stored = Instant().process_bind_param(instant, DIALECT)
    assert Instant().process_result_value(stored, DIALECT) == instant


@given(JSON)
def test_document_is_read_as_it_was_written(value: object) -> None:
    stored = Document().process_bind_param(value, DIALECT)
    assert Document().process_result_value(stored, DIALECT) == value
    assert stored is None or "\0" not in stored  # which PostgreSQL refuses


def test_document_may_hold_values_of_the_model() -> None:
    upload = UploadResult(UploadTarget("local"), "pending")
    value = MappingProxyType({"uploads": (upload,), "state": ComposeState.PENDING})
    stored = Document().process_bind_param(value, DIALECT)
    assert Document().process_result_value(stored, DIALECT) == {
        "uploads": [attrs.asdict(upload)],
        "state": "pending",
    }


def test_value_without_a_form_in_json_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        Document().process_bind_param(JobError(1, "x", b"y"), DIALECT)


@given(CUSTOMIZATIONS, st.uuids().map(str))
def test_customization_is_opened_for_its_compose_alone(
    customization: ImageCustomization, compose_id: str
) -> None:
    cipher = RowCipher([b"a" * 32])
    sealed = cipher.seal("org-1", compose_id, customization)
    assert cipher.unseal("org-1", compose_id, sealed) == customization
    for tenant, other_id, damaged in (
        ("org-1", compose_id[:-1], sealed),
        ("org-2", compose_id, sealed),
        ("", f"org-1{compose_id}", sealed),
        ("org-1", compose_id, sealed[:-1]),
        ("org-1", compose_id, b""),
    ):
        with pytest.raises(RowNotAuthentic):
            cipher.unseal(tenant, other_id, damaged)
