"""Clients of EC2 against a listener: boto3, awscli, curl, and requests written by hand."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from twisted.internet.defer import maybeDeferred
from twisted.internet.threads import deferToThread

from image_service.jobs.api.front import ApiFront
from image_service.jobs.ec2.ec2_api import Ec2Api
from image_service.jobs.ec2.signatures import SignatureVerifier
from image_service.jobs.metrics.jobs_metrics import JobsMetrics
from image_service.jobs.tenants.authenticator import OpenAuthenticator
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.resource import ApiSite
from tests.acceptance.clients import needs_client, run_client
from tests.jobs.ec2.signing import CREDENTIAL, HOST, signed_request
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from twisted.internet.epollreactor import EPollReactor

    from image_service.jobs.ec2.operations import Ec2Caller

TASK = {
    "ConversionTaskId": "import-vol-1234abcd",
    "ExpirationTime": "2026-11-30T12:00:00Z",
    "State": "active",
    "StatusMessage": "image upload awaited",
    "Tags": [],
    "ImportVolume": {"BytesConverted": 0, "Description": "a disk & more", "Volume": {"Size": 1}},
}


@attrs.define
class Handlers:
    """Operations that record their parameters and return constant results."""

    calls: list[tuple[str, Mapping[str, Any]]] = attrs.field(factory=list)

    async def handle(
        self, name: str, result: Mapping[str, Any], caller: Ec2Caller, parameters: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        assert caller.tenant == "org-42"
        self.calls.append((name, parameters))
        return result

    def all(self) -> dict[str, Any]:
        results: dict[str, Mapping[str, Any]] = {
            "ImportVolume": {"ConversionTask": TASK},
            "ImportInstance": {"ConversionTask": TASK},
            "DescribeConversionTasks": {"ConversionTasks": [TASK]},
            "CancelConversionTask": {},
            "CreateInstanceExportTask": {"ExportTask": {"ExportTaskId": "export-i-1234abcd"}},
            "DescribeExportTasks": {"ExportTasks": [{"ExportTaskId": "export-i-1234abcd"}]},
            "CancelExportTask": {},
        }
        return {name: partial(self.handle, name, result) for name, result in results.items()}


@asynccontextmanager
async def serving(reactor: EPollReactor) -> AsyncIterator[tuple[int, Handlers]]:
    """Serve EC2's API at a port."""
    handlers = Handlers()
    verifier = SignatureVerifier(lambda: {CREDENTIAL.access_key: CREDENTIAL})
    front = ApiFront(OpenAuthenticator("worker"), (), Ec2Api(verifier, handlers.all(), JobsMetrics()))
    site = ApiSite(front.resource(RequestGuard()), reactor, 2**20)
    port = reactor.listenTCP(0, site, interface="127.0.0.1")
    try:
        yield port.getHost().port, handlers
    finally:
        await maybeDeferred(port.stopListening)


def client_of(port: int, **settings: str) -> Any:
    """Return a client of boto3 that does not retry."""
    keys = {
        "aws_access_key_id": CREDENTIAL.access_key,
        "aws_secret_access_key": CREDENTIAL.secret_key,
        "region_name": "here",
        **settings,
    }
    config = Config(retries={"total_max_attempts": 1})
    return boto3.client("ec2", endpoint_url=f"http://localhost:{port}", config=config, **keys)


IMAGE = {
    "Format": "VMDK",
    "Bytes": 2**40,
    "ImportManifestUrl": "https://s3.example.com/b/m?X-Amz-Signature=0&a=b",
}
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "ImportVolume",
        {"AvailabilityZone": "a", "Image": IMAGE, "Volume": {"Size": 8}, "Description": "a\nü <b>"},
    ),
    (
        "ImportInstance",
        {
            "Platform": "Linux",
            "DiskImages": [{"Image": IMAGE, "Volume": {"Size": size}} for size in (1, 2)],
            "LaunchSpecification": {
                "Architecture": "x86_64",
                "GroupNames": ["web", "ssh"],
                "UserData": {"Data": "IyEvYmluL3NoCg=="},
                "Monitoring": True,
                "AdditionalInfo": '{"layout": "partition"}',
            },
        },
    ),
    ("DescribeConversionTasks", {"ConversionTaskIds": ["import-vol-1234abcd", "import-i-1"]}),
    ("CancelConversionTask", {"ConversionTaskId": "import-vol-1234abcd", "ReasonMessage": "not needed"}),
    (
        "CreateInstanceExportTask",
        {
            "InstanceId": "i-1",
            "TargetEnvironment": "vmware",
            "ExportToS3Task": {"DiskImageFormat": "VMDK", "ContainerFormat": "ova", "S3Bucket": "b"},
            "TagSpecifications": [
                {"ResourceType": "export-instance-task", "Tags": [{"Key": "k", "Value": "v"}]},
            ],
        },
    ),
    ("DescribeExportTasks", {"Filters": [{"Name": "state", "Values": ["active", "completed"]}]}),
    ("CancelExportTask", {"ExportTaskId": "export-i-1234abcd"}),
)


def call_all(port: int) -> list[dict[str, Any]]:
    """Return the results of all `CALLS` by boto3."""
    client = client_of(port)
    try:
        return [client._make_api_call(name, parameters) for name, parameters in CALLS]
    finally:
        client.close()


def error_code(port: int, call: str = "describe_conversion_tasks", **settings: str) -> str:
    """Return the code of the error of a call by boto3."""
    client = client_of(port, **settings)
    try:
        getattr(client, call)()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    finally:
        client.close()
    return ""


@ensure_deferred
async def test_boto3_drives_all_operations(reactor: EPollReactor) -> None:
    async with serving(reactor) as (port, handlers):
        replies = await deferToThread(call_all, port)
    assert handlers.calls == list(CALLS)
    assert replies[0]["ConversionTask"] == TASK
    assert replies[2]["ConversionTasks"] == [TASK]
    assert replies[4]["ExportTask"] == {"ExportTaskId": "export-i-1234abcd"}
    assert all(len(reply["ResponseMetadata"]["RequestId"]) == 32 for reply in replies)


@ensure_deferred
async def test_boto3_shows_the_codes_of_errors(reactor: EPollReactor) -> None:
    async with serving(reactor) as (port, handlers):
        wrong = {"aws_secret_access_key": "another-secret-key"}
        assert await deferToThread(error_code, port, **wrong) == "SignatureDoesNotMatch"
        assert await deferToThread(error_code, port, aws_access_key_id="nobody") == "AuthFailure"
        assert await deferToThread(error_code, port, "describe_instances") == "UnsupportedOperation"
    assert handlers.calls == []


def run_awscli(port: int, *arguments: str) -> Any:
    """Return the output of awscli."""
    environment = {
        "PATH": os.environ["PATH"],
        "AWS_ACCESS_KEY_ID": CREDENTIAL.access_key,
        "AWS_SECRET_ACCESS_KEY": CREDENTIAL.secret_key,
        "AWS_DEFAULT_REGION": "here",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    program = needs_client(str(Path(sys.executable).with_name("aws")))
    command = (program, "--endpoint-url", f"http://localhost:{port}", "ec2")
    done = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


@ensure_deferred
async def test_awscli(reactor: EPollReactor) -> None:
    export = ("--instance-id", "i-1", "--target-environment", "vmware", "--export-to-s3-task", "S3Bucket=b")
    async with serving(reactor) as (port, handlers):
        tasks = await deferToThread(run_awscli, port, "describe-conversion-tasks")
        await deferToThread(run_awscli, port, "create-instance-export-task", *export)
    assert tasks["ConversionTasks"] == [TASK]
    parameters = {"InstanceId": "i-1", "TargetEnvironment": "vmware", "ExportToS3Task": {"S3Bucket": "b"}}
    assert handlers.calls == [("DescribeConversionTasks", {}), ("CreateInstanceExportTask", parameters)]


@ensure_deferred
async def test_curl_signs_requests(reactor: EPollReactor) -> None:
    user = f"{CREDENTIAL.access_key}:{CREDENTIAL.secret_key}"
    form = "Action=DescribeConversionTasks&Version=2012-12-01&ConversionTaskId.1=import-vol-1234abcd"
    arguments = ("--silent", "--aws-sigv4", "aws:amz:here:ec2", "--user", user, "--data", form)
    async with serving(reactor) as (port, handlers):
        url = f"http://localhost:{port}/services/compute"
        reply = await deferToThread(run_client, "curl", *arguments, url)
    assert b'DescribeConversionTasksResponse xmlns="http://ec2.amazonaws.com/doc/2012-12-01/"' in reply
    assert handlers.calls == [("DescribeConversionTasks", {"ConversionTaskIds": ["import-vol-1234abcd"]})]


def exchange(port: int, request: bytes) -> bytes:
    """Send bytes, and return all that is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(request)
        return b"".join(iter(partial(connection.recv, 65536), b""))


def raw_request(form: Mapping[str, str], path: str = "/") -> bytes:
    """Return the bytes of a signed request."""
    request = signed_request(form, path=path, at=datetime.now(UTC))
    fields = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    head = f"POST {path} HTTP/1.1\r\n{fields}Content-Length: {len(request.body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + request.body


@pytest.mark.parametrize(("version", "path"), [("2010-08-31", "/services/compute"), ("2016-11-15", "/")])
@ensure_deferred
async def test_requests_by_hand(version: str, path: str, reactor: EPollReactor) -> None:
    """The request of an older client, without a type of its content, to a host of any name."""
    form = {
        "Action": "ImportInstance",
        "Version": version,
        "Platform": "Linux",
        "DiskImage.1.Image.Format": "RAW",
        "DiskImage.1.Image.Bytes": "10485760",
        "DiskImage.1.Image.ImportManifestUrl": "https://s3.example.com/b/m",
        "DiskImage.1.Volume.Size": "1",
        "LaunchSpecification.GroupName.1": "default",
        "LaunchSpecification.Placement.AvailabilityZone": "one",
    }
    async with serving(reactor) as (port, handlers):
        answer = await deferToThread(exchange, port, raw_request(form, path))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/xml;charset=UTF-8" in head
    namespace = (
        f'<ImportInstanceResponse xmlns="http://ec2.amazonaws.com/doc/{version}/"><requestId>'.encode()
    )
    assert namespace in body
    assert b"<conversionTaskId>import-vol-1234abcd</conversionTaskId>" in body
    image = {"Format": "RAW", "Bytes": 10485760, "ImportManifestUrl": "https://s3.example.com/b/m"}
    parameters = {
        "Platform": "Linux",
        "DiskImages": [{"Image": image, "Volume": {"Size": 1}}],
        "LaunchSpecification": {"GroupNames": ["default"], "Placement": {"AvailabilityZone": "one"}},
    }
    assert handlers.calls == [("ImportInstance", parameters)]


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 405, b"MethodNotAllowed"),
        (
            b"POST /?X-Amz-Signature=0 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            403,
            b"MissingAuthenticationToken",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\nConnection: close\r\n\r\n"
            + b"x" * 70000,
            413,
            b"RequestEntityTooLarge",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
            403,
            b"MissingAuthenticationToken",
        ),
    ],
    ids=["get", "presigned", "large", "json"],
)
@ensure_deferred
async def test_requests_that_are_refused(
    request_: bytes, status: int, code: bytes, reactor: EPollReactor
) -> None:
    async with serving(reactor) as (port, handlers):
        answer = await deferToThread(exchange, port, request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"<Code>" + code + b"</Code>" in answer
    assert handlers.calls == []


@ensure_deferred
async def test_a_proxy_that_alters_the_host_breaks_signatures(reactor: EPollReactor) -> None:
    request = raw_request({"Action": "DescribeExportTasks", "Version": "2016-11-15"})
    async with serving(reactor) as (port, handlers):
        answer = await deferToThread(exchange, port, request.replace(HOST.encode(), b"other"))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"the name in Host, and whether a proxy alters requests" in answer
    assert handlers.calls == []
