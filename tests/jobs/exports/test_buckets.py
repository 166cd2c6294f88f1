"""The check of buckets against a real S3 server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.objects.s3_client import S3Options
from image_service.core.errors import StoreFailed
from image_service.jobs.ec2.errors import Ec2Error
from image_service.jobs.ec2.operations import Ec2Caller
from image_service.jobs.exports.buckets import ExportBuckets
from tests.ports import free_port
from tests.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.s3_server import S3Server

pytestmark = pytest.mark.acceptance

CALLER = Ec2Caller("org-1", "AKIA", ("*",), ("imag*", "other-bucket"), "ab" * 32)
KEY = "exports/export-i-0123456789abcdef0.vmdk"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def options_of(port: int, secret_key: str = SECRET_KEY) -> S3Options:
    return S3Options(
        access_key_id=ACCESS_KEY, secret_access_key=secret_key, endpoint_url=f"http://127.0.0.1:{port}"
    )


def objects(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_bucket_that_can_be_written_stays_as_it_is(s3: S3Server) -> None:
    buckets = ExportBuckets(options_of(s3.port))
    for _ in range(2):
        buckets.check(CALLER, BUCKET, KEY)
    assert objects(s3.directory) == []


@pytest.mark.parametrize(
    ("bucket", "code", "reason"),
    [
        ("other-bucket", "InvalidParameterValue", "the bucket other-bucket does not exist"),
        ("secret-bucket", "UnauthorizedOperation", "the access key may not export to the bucket"),
    ],
)
def test_other_buckets_are_refused(s3: S3Server, bucket: str, code: str, reason: str) -> None:
    with pytest.raises(Ec2Error) as caught:
        ExportBuckets(options_of(s3.port)).check(CALLER, bucket, KEY)
    assert caught.value.error_code == code
    assert reason in caught.value.detail


def test_bucket_that_refuses_our_credentials_is_named(s3: S3Server) -> None:
    with pytest.raises(Ec2Error, match=f"the bucket {BUCKET} cannot be written: "):
        ExportBuckets(options_of(s3.port, "another-secret-key")).check(CALLER, BUCKET, KEY)


def test_access_key_without_buckets_exports_nowhere(s3: S3Server) -> None:
    caller = attrs.evolve(CALLER, buckets=())
    with pytest.raises(Ec2Error, match="may not export"):
        ExportBuckets(options_of(s3.port)).check(caller, BUCKET, KEY)


def test_server_that_does_not_answer_is_no_fault_of_the_request() -> None:
    port = free_port()
    options = attrs.evolve(options_of(port), attempts=1)
    told = f"cannot check a bucket: http://127.0.0.1:{port}: Connection refused"
    with pytest.raises(StoreFailed, match=told):
        ExportBuckets(options).check(CALLER, BUCKET, KEY)
