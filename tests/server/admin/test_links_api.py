"""Requests for short links."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import InvalidParameter, InvalidRequest
from image_service.server.admin.admin_api import api_routes
from image_service.server.admin.links_api import MAX_QR_URL, LinksApi, LocalLinks, parse_link_request
from image_service.server.links.links import LinkRequest
from image_service.server.web_api.messages import ApiRequest
from image_service.server.web_api.router import ApiRouter
from tests.pytwisted import ensure_deferred

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


@ensure_deferred
async def test_qr_code_is_made_of_a_url_that_a_phone_can_read() -> None:
    router = ApiRouter(api_routes([LinksApi(LocalLinks(None), MAX_SECONDS)]))  # type: ignore[arg-type] # not called
    url = "http://images.example.com:8080/s/k5x2mq7hn3vbt4aw.iso"

    async def encode(body: object) -> list[str]:
        request = ApiRequest("POST", "/api/v1/qr-codes", body=json.dumps(body).encode())
        rows: list[str] = json.loads((await router.respond(request)).body)["rows"]
        return rows

    rows = await encode({"url": url})
    assert {len(row) for row in rows} == {len(rows)} == {33}  # version 4: 62 bytes at level M
    corner = ["1111111", "1000001", "1011101", "1011101", "1011101", "1000001", "1111111"]
    assert [row[:7] for row in rows[:7]] == [row[-7:] for row in rows[:7]] == corner
    assert [row[:7] for row in rows[-7:]] == corner
    for wrong in ("", "a" * (MAX_QR_URL + 1), "a\n", "a b", "\xe9"):
        with pytest.raises(InvalidParameter, match=f"1 to {MAX_QR_URL} characters of ASCII"):
            await encode({"url": wrong})
    for other in ({}, {"url": 1}, {"url": url, "a": 1}):
        with pytest.raises(InvalidParameter, match="url must be the only member, a string"):
            await encode(other)
    assert len(await encode({"url": "a" * MAX_QR_URL})) > len(rows)


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
