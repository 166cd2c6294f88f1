from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
import pytest
from botocore.auth import SigV4Auth
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.common.files import reloaded
from image_service.jobs.ec2.errors import Ec2Error, SignatureRefused
from image_service.jobs.ec2.operations import Ec2Caller
from image_service.jobs.ec2.signatures import SignatureVerifier
from tests.jobs.ec2.signing import CREDENTIAL, HOST, NOW, signed_request

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.server.web_api.messages import ApiRequest
    from image_service.settings.jobs.ec2 import Ec2Credential

FORM = {"Action": "CancelExportTask", "Version": "2016-11-15", "ExportTaskId": "export-i-1234abcd"}
FIELDS = {"content-type": "application/x-www-form-urlencoded", "x-amz-meta": "one two"}
OTHER_KEY = attrs.evolve(CREDENTIAL, access_key="OTHER", tenant="", operations=("Describe*",))
VERIFIER = SignatureVerifier(lambda: {each.access_key: each for each in (CREDENTIAL, OTHER_KEY)}, lambda: NOW)
REQUEST = signed_request(FORM, fields=FIELDS)
AUTHORIZATION = REQUEST.headers["authorization"]
MUTATIONS = settings(max_examples=100)


def error_code(request: ApiRequest) -> str:
    """Return the code with which a request is refused."""
    with pytest.raises(Ec2Error) as caught:
        VERIFIER.verify(request)
    assert CREDENTIAL.secret_key not in caught.value.detail
    return caught.value.error_code


def with_field(request: ApiRequest, name: str, value: str | None) -> ApiRequest:
    """Return a request with another value of a field, or without it."""
    headers = {key: text for key, text in request.headers.items() if key != name}
    return attrs.evolve(request, headers=headers if value is None else {**headers, name: value})


def replace_in_authorization(request: ApiRequest, old: str, new: str) -> ApiRequest:
    field = request.headers["authorization"]
    assert old in field
    return with_field(request, "authorization", field.replace(old, new))


def test_callers_have_what_their_access_key_has() -> None:
    caller = VERIFIER.verify(REQUEST)
    assert caller == Ec2Caller("org-42", "AKIDEXAMPLE", ("*",), ("*",), caller.request_digest)
    other = VERIFIER.verify(signed_request(FORM, fields=FIELDS, credential=OTHER_KEY))
    assert (other.tenant, other.access_key) == ("", "OTHER")
    assert (other.may_call("DescribeExportTasks"), other.may_call("CancelExportTask")) == (True, False)


def test_changed_access_keys_are_in_force_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloaded, "CHECK_SECONDS", 0)  # a reload of all files would reload other tests' too
    path = tmp_path / "keys.json"

    def write(credential: Ec2Credential) -> None:
        path.write_text(json.dumps([attrs.asdict(credential)]))
        path.chmod(0o600)

    def is_known(credential: Ec2Credential) -> bool:
        try:
            verifier.verify(signed_request(FORM, at=datetime.now(UTC), credential=credential))
        except SignatureRefused:
            return False
        return True

    write(CREDENTIAL)
    verifier = SignatureVerifier.of_file(path)
    assert (is_known(CREDENTIAL), is_known(OTHER_KEY)) == (True, False)
    write(OTHER_KEY)
    assert (is_known(CREDENTIAL), is_known(OTHER_KEY)) == (False, True)


def test_a_repeated_request_has_the_same_digest_and_no_other_has() -> None:
    requests = (
        REQUEST,
        with_field(REQUEST, "user-agent", "retry"),
        signed_request(FORM, fields=FIELDS, at=NOW + timedelta(seconds=1)),
        signed_request({**FORM, "ExportTaskId": "x"}, fields=FIELDS),
        signed_request(FORM, fields=FIELDS, credential=OTHER_KEY),  # it has the same secret key
    )
    first, repeated, *others = (VERIFIER.verify(request).request_digest for request in requests)
    assert first == repeated
    assert len({first, *others}) == 4


@pytest.mark.parametrize("path", ["/", "/services/compute", "/services/compute/"])
@pytest.mark.parametrize("region", ["us-east-1", "eucalyptus", "x"])
def test_paths_and_regions(path: str, region: str) -> None:
    VERIFIER.verify(signed_request(FORM, path=path, region=region))


def test_signed_fields_may_be_many_and_of_any_name() -> None:
    fields = {"user-agent": "aws", "expect": "100-continue", "x-amzn-trace-id": "1", "x-amz-target": "y"}
    VERIFIER.verify(signed_request(FORM, fields=fields))
    VERIFIER.verify(with_field(REQUEST, "x-amz-meta", " one   two "))  # white space is not signed


@pytest.mark.parametrize(
    ("seconds", "expired"), [(-901, True), (-900, False), (0, False), (900, False), (901, True)]
)
def test_clocks_may_differ_by_15_minutes(seconds: int, *, expired: bool) -> None:
    request = signed_request(FORM, at=NOW + timedelta(seconds=seconds))
    if expired:
        assert error_code(request) == "RequestExpired"
    else:
        VERIFIER.verify(request)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (with_field(REQUEST, "authorization", None), "MissingAuthenticationToken"),
        (
            attrs.evolve(with_field(REQUEST, "authorization", None), target="/?X-Amz-Signature=0"),
            "MissingAuthenticationToken",
        ),
        (with_field(REQUEST, "authorization", ""), "IncompleteSignature"),
        (with_field(REQUEST, "authorization", "Bearer token"), "IncompleteSignature"),
        (replace_in_authorization(REQUEST, "SHA256 ", "SHA512 "), "IncompleteSignature"),
        (replace_in_authorization(REQUEST, "Signature=", "Signature=0"), "IncompleteSignature"),
        (replace_in_authorization(REQUEST, "aws4_request", "aws4"), "IncompleteSignature"),
        (
            with_field(REQUEST, "authorization", f"{AUTHORIZATION}, {AUTHORIZATION}"),
            "IncompleteSignature",
        ),
        (with_field(REQUEST, "x-amz-date", None), "IncompleteSignature"),
        (with_field(REQUEST, "x-amz-date", "20261399T000000Z"), "IncompleteSignature"),
        (with_field(REQUEST, "x-amz-date", "20261123T120000Z, 20261123T120000Z"), "IncompleteSignature"),
        (signed_request(FORM, service="s3"), "SignatureDoesNotMatch"),
        (replace_in_authorization(REQUEST, "/20261123/", "/20261122/"), "SignatureDoesNotMatch"),
        (
            replace_in_authorization(REQUEST, "content-type;host", "host;content-type"),
            "SignatureDoesNotMatch",
        ),
        (replace_in_authorization(REQUEST, ";host;", ";"), "SignatureDoesNotMatch"),
        (replace_in_authorization(REQUEST, ";x-amz-date", ";x-amz-date;absent"), "SignatureDoesNotMatch"),
        (with_field(REQUEST, "x-amz-security-token", "unsigned"), "SignatureDoesNotMatch"),
        (with_field(REQUEST, "host", f"{HOST}, {HOST}"), "SignatureDoesNotMatch"),
        (with_field(REQUEST, "content-type", None), "SignatureDoesNotMatch"),
        (signed_request(FORM, fields={"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}), "SignatureDoesNotMatch"),
        (attrs.evolve(REQUEST, path="/services/compute"), "SignatureDoesNotMatch"),
        (
            signed_request(FORM, credential=attrs.evolve(CREDENTIAL, secret_key="another-secret-key")),
            "SignatureDoesNotMatch",
        ),
        (signed_request(FORM, credential=attrs.evolve(CREDENTIAL, access_key="nobody")), "AuthFailure"),
    ],
    ids=[
        *("unsigned", "presigned", "empty", "bearer", "algorithm", "long", "scope", "two"),
        *(
            "no-date",
            "no-day",
            "two-dates",
            "service",
            "other-date",
            "order",
            "host",
            "absent",
            "unsigned-field",
        ),
        *("two-hosts", "no-type", "unsigned-payload", "path", "secret", "key"),
    ],
)
def test_wrong_signatures(request_: ApiRequest, expected: str) -> None:
    assert error_code(request_) == expected


def test_unknown_access_keys_and_wrong_signatures_do_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("canonical_headers", "canonical_query_string", "string_to_sign", "signature"):
        original = getattr(SigV4Auth, name)

        def record(*args: object, _name: str = name, _original: object = original) -> object:
            calls.append(_name)
            return _original(*args)  # type: ignore[operator]

        monkeypatch.setattr(SigV4Auth, name, record)
    work = []
    for credential in (
        attrs.evolve(CREDENTIAL, access_key="nobody"),
        attrs.evolve(CREDENTIAL, secret_key="another-secret-key"),
    ):
        calls.clear()
        with pytest.raises(SignatureRefused):
            VERIFIER.verify(signed_request(FORM, credential=credential))
        work.append(list(calls))
    assert work[0] == work[1] != []


@MUTATIONS
@given(st.binary())
def test_altered_bodies_are_refused(body: bytes) -> None:
    if body != REQUEST.body:
        assert error_code(attrs.evolve(REQUEST, body=body)) == "SignatureDoesNotMatch"


@MUTATIONS
@given(st.integers(0, len(REQUEST.body) - 1), st.integers(1, 255))
def test_bodies_with_an_altered_byte_are_refused(index: int, difference: int) -> None:
    body = bytearray(REQUEST.body)
    body[index] ^= difference
    assert error_code(attrs.evolve(REQUEST, body=bytes(body))) == "SignatureDoesNotMatch"


@MUTATIONS
@given(st.sampled_from(["host", *FIELDS]), st.text(st.characters(max_codepoint=255)))
def test_altered_fields_are_refused(name: str, value: str) -> None:
    if value.split() != REQUEST.headers[name].split():
        assert error_code(with_field(REQUEST, name, value)) == "SignatureDoesNotMatch"


@MUTATIONS
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_altered_queries_are_refused(query: str) -> None:
    if not query.startswith("#"):
        assert error_code(attrs.evolve(REQUEST, target=f"/?{query}")) == "SignatureDoesNotMatch"


@MUTATIONS
@given(st.integers(-900, 900).filter(bool))
def test_altered_times_are_refused(seconds: int) -> None:
    time = (NOW + timedelta(seconds=seconds)).strftime("%Y%m%dT%H%M%SZ")
    assert error_code(with_field(REQUEST, "x-amz-date", time)) == "SignatureDoesNotMatch"


@MUTATIONS
@given(st.from_regex(r"[a-z0-9-]{1,30}", fullmatch=True).filter(lambda region: region != "us-east-1"))
def test_altered_regions_are_refused(region: str) -> None:
    request = replace_in_authorization(REQUEST, "/us-east-1/", f"/{region}/")
    assert error_code(request) == "SignatureDoesNotMatch"


@MUTATIONS
@given(st.from_regex(r"[A-Za-z0-9_-]{1,30}", fullmatch=True).filter(lambda key: key != "AKIDEXAMPLE"))
def test_altered_access_keys_are_refused(key: str) -> None:
    request = replace_in_authorization(REQUEST, "=AKIDEXAMPLE/", f"={key}/")
    assert error_code(request) == "AuthFailure"


@MUTATIONS
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_other_secret_keys_are_refused(secret_key: str) -> None:
    if secret_key != CREDENTIAL.secret_key:
        request = signed_request(FORM, credential=attrs.evolve(CREDENTIAL, secret_key=secret_key))
        assert error_code(request) == "SignatureDoesNotMatch"


@MUTATIONS
@given(st.integers(0, 63), st.sampled_from("0123456789abcdef"))
def test_altered_signatures_are_refused(index: int, digit: str) -> None:
    signature = AUTHORIZATION[-64:]
    altered = signature[:index] + digit + signature[index + 1 :]
    if altered != signature:
        assert error_code(replace_in_authorization(REQUEST, signature, altered)) == "SignatureDoesNotMatch"
