"""Requests to S3 without an answer: the text has the endpoint and the cause."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from image_service.common.objects.s3_causes import describe_sdk_error
from image_service.common.objects.s3_client import BucketLocation, S3Client, S3Failed, S3Options
from image_service.core.errors import StoreFailed, TransferFailed
from tests.chains import write_chain
from tests.ports import free_port
from tests.server.catalog.origin import Reply, running

if TYPE_CHECKING:
    from pathlib import Path

PLACE = BucketLocation("bucket", "key")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give the SDK credentials, and no files of the user."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)


def failure(endpoint: str, place: BucketLocation = PLACE) -> str:
    with pytest.raises((S3Failed, StoreFailed)) as caught:
        S3Client(S3Options(endpoint_url=endpoint, attempts=1, answer_seconds=1)).put(place, b"x")
    text = caught.value.detail
    assert "Error" not in text
    assert "s3cret" not in text
    return text


def test_refused_connection_is_told() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    assert failure(endpoint) == f"cannot upload s3://bucket/key: {endpoint}: Connection refused"


def test_unknown_host_is_told() -> None:
    told = failure("https://nowhere.invalid")
    assert told.startswith(
        "cannot upload s3://bucket/key: https://nowhere.invalid: its name does not resolve: "
    )


def test_silent_server_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert failure(endpoint) == f"cannot upload s3://bucket/key: {endpoint}: no answer in time"


def test_port_without_tls_is_told() -> None:
    with running() as server:
        endpoint = server.url("").replace("http:", "https:")
        assert failure(endpoint).endswith(f"{endpoint}: TLS failed: the port may not speak HTTPS")


def test_proxy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:s3cret@127.0.0.1:{free_port()}")
    told = failure("https://h.example")
    assert told.endswith(
        "https://h.example: the proxy: Connection refused; check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
    )


@pytest.mark.parametrize("endpoint", ["nonsense", "http://a..b", f"https://{'a' * 64}.example"])
def test_endpoint_that_is_no_url_is_told(endpoint: str) -> None:
    assert failure(endpoint) == (
        "the settings of S3 are invalid: the endpoint is not an http or https URL with a valid host; check"
        " AWS_ENDPOINT_URL"
    )


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("AWS_PROFILE", "none", "the SDK's files do not have the profile; check AWS_PROFILE"),
        ("AWS_DEFAULT_REGION", "a region", "the region is not valid; check AWS_REGION"),
        ("AWS_CONFIG_FILE", "{damaged}", "the SDK's files are damaged"),
    ],
)
def test_setting_of_the_sdk_is_told(
    name: str, value: str, cause: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "damaged").write_text("[")
    monkeypatch.setenv(name, value.format(damaged=tmp_path / "damaged"))
    assert failure("http://127.0.0.1:1") == f"the settings of S3 are invalid: {cause}"


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_missing_credentials_are_told(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable)
    assert "no credentials; " in failure("http://127.0.0.1:1")


def test_invalid_bucket_is_told() -> None:
    assert failure("http://127.0.0.1:1", BucketLocation("b b", "k")).endswith(
        ": the bucket or the key is not valid"
    )


def test_other_errors_have_a_text() -> None:
    assert describe_sdk_error(RuntimeError("s3cret")) == "the SDK failed"


def read(endpoint: str) -> bytes:
    client = S3Client(S3Options(endpoint_url=endpoint, attempts=1, answer_seconds=9))
    return client.read_at(PLACE, 0, 4)


@pytest.mark.parametrize(
    "name", ["without key identifiers", "basic constraints not critical", "without subject"]
)
def test_certificates_of_private_authorities_are_trusted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = write_chain(name, tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain.certificate)
    with running(context) as server:
        server.serve("/bucket/key", Reply(b"body", status=206))
        endpoint = server.url("")
        with pytest.raises(TransferFailed) as caught:
            read(endpoint)
        assert caught.value.detail.startswith(f"cannot read s3://bucket/key: {endpoint}: certificate: ")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(chain.ca_file))
        assert read(endpoint) == b"body"
