from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import IgnitionInvalid, IgnitionNotJson
from image_service.core.families.coreos.ignition import check_ignition


@pytest.mark.parametrize("version", ["3.0.0", "3.2.0", "3.10.12", "3.6.0-experimental"])
def test_version_3_configs_pass(version: str) -> None:
    check_ignition(json.dumps({"ignition": {"version": version}, "storage": {"files": []}}).encode())


@pytest.mark.parametrize(
    "version",
    [
        "",
        "3",
        "3.2",
        "2.2.0",
        "4.0.0",
        "3.01.0",
        "3.2.0-rc1",
        "3.2.0 ",
        "3.2.0\n",
        " 3.2.0",
        "v3.2.0",
        "3.².0",
    ],
)
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(IgnitionInvalid, match=r"'ignition.version' is not 3.x.y"):
        check_ignition(json.dumps({"ignition": {"version": version}}).encode())


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ([], "object"),
        (None, "object"),
        ("3.2.0", "object"),
        ({}, "'ignition'"),
        ({"ignition": "3.2.0"}, "'ignition'"),
        ({"ignition": {}}, "'ignition.version'"),
        ({"ignition": {"version": 3}}, "'ignition.version'"),
        ({"ignition": {"version": None}}, "'ignition.version'"),
    ],
)
def test_missing_member_is_named(config: object, missing: str) -> None:
    with pytest.raises(IgnitionInvalid, match=missing):
        check_ignition(json.dumps(config).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"<html>",
        b'{"ignition": {"version": "3.2.0"}',
        b'{"ignition": {"version": "3.2.0"}} {}',
        b'{"ignition": {"version": "3.2.0"}, "x": NaN}',
        b'{"ignition": {"version": "3.2.0"}, "x": "\xff"}',
        b'\xef\xbb\xbf{"ignition": {"version": "3.2.0"}}',
        '{"ignition": {"version": "3.2.0"}}'.encode("utf-16"),
        b"[" * 100_000,
        b"1" * 5000,
    ],
)
def test_config_that_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(IgnitionNotJson, match=f"{len(body)} bytes is not JSON"):
        check_ignition(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"ignition": {\n  "version": 3.2.0}}', "is not JSON: line 2, column 17"),
        (b'{"ignition": {"version": "3.2.0"}}\n]', "is not JSON: line 2, column 1"),
        (b'{"ignition": {"version": "3.2.0"}\n', "is not JSON: it ends too early"),
        (b"", "is not JSON: it ends too early"),
        (b"variant: fcos\nversion: 1.5.0\n", "is not JSON; it is Butane: translate it by butane"),
        (b"# a comment\nversion: 1.5.0\nvariant : openshift\n", "it is Butane: translate it by butane"),
        (b'{"ignition": {"version": "2.2.0"}}', "not 3.x.y; ign-converter translates configs of version 2"),
        (b'{"ignition": {"version": "4.0.0"}}', "not 3.x.y"),
    ],
)
def test_refusal_says_where_and_what_to_do(body: bytes, reason: str) -> None:
    with pytest.raises((IgnitionNotJson, IgnitionInvalid)) as caught:
        check_ignition(body)
    assert caught.value.detail.endswith(reason)


@pytest.mark.parametrize(
    "body", [b'{"hunter2": ', b'{"ignition": {"version": "hunter2"}}', b'{"hunter2": {}}', b'"hunter2"']
)
def test_refusal_does_not_quote_the_config(body: bytes) -> None:
    with pytest.raises((IgnitionNotJson, IgnitionInvalid)) as caught:
        check_ignition(body)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


DOCUMENTS = st.recursive(
    st.none() | st.text() | st.just("3.2.0"),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["ignition", "version"]), inner),
)


@given(st.binary() | DOCUMENTS.map(json.dumps).map(str.encode))
def test_random_configs_are_accepted_or_refused(body: bytes) -> None:
    try:
        check_ignition(body)
    except (IgnitionNotJson, IgnitionInvalid):
        return
    assert json.loads(body)["ignition"]["version"].startswith("3.")
