"""Requests for short links."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import InvalidParameter, InvalidRequest
from image_service.server.admin.links_api import LinksApi, LocalLinks, parse_link_request
from image_service.server.links.links import LinkRequest

MAX_SECONDS = 1000

values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
documents = st.fixed_dictionaries(
    {},
    optional={
        "url": values | st.just("http://images.test/x"),
        "expires_in": values | st.integers(1, MAX_SECONDS),
        "label": values | st.text(max_size=300),
        "pinned": values,
        "other": values,
    },
)


def parse(document: object) -> LinkRequest:
    return parse_link_request(json.dumps(document).encode(), MAX_SECONDS)


def test_defaults_are_a_day_at_most() -> None:
    assert parse({"url": "u"}) == LinkRequest("u", MAX_SECONDS, "", pinned=False)
    assert parse_link_request(b'{"url": "u"}', 10**6).expires_in == 86400


@given(documents)
def test_accepted_documents_are_those_of_the_schema(document: dict[str, Any]) -> None:
    links = LocalLinks(None)  # type: ignore[arg-type] # is not called
    schema = LinksApi(links, MAX_SECONDS).schemas["NewLink"]
    try:
        parse(document)
    except InvalidParameter:
        is_valid = jsonschema.Draft202012Validator(schema).is_valid(document)
        texts = "".join(value for value in document.values() if isinstance(value, str))
        is_float = isinstance(document.get("expires_in"), float)  # 1.0 is an integer of JSON Schema
        assert not is_valid or not texts.isprintable() or is_float
    else:
        jsonschema.validate(document, schema, jsonschema.Draft202012Validator)


def test_all_faults_are_named() -> None:
    with pytest.raises(InvalidParameter) as error:
        parse({"expires_in": 1001, "label": "a\n", "pinned": "yes", "expiry": 3})
    for words in (
        "'expiry' is not known",
        "url must be a string of 1 to 8192 characters",
        "expires_in must be a whole number of seconds from 1 to 1000",
        "label must be a string of at most 200 printable characters",
        "pinned must be true or false",
    ):
        assert words in error.value.detail


@pytest.mark.parametrize("body", [b"", b"[]", b"x", b'{"url": '])
def test_other_content_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_link_request(body, MAX_SECONDS)
