"""Two replicas of the jobs role, with PostgreSQL, S3, an engine of their own, and tenants."""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from image_service.settings.jobs.ec2 import Ec2Credential
from tests.acceptance.service import fetch
from tests.jobs.ec2.signing import signed_request
from tests.jobs.ec2_clients import EC2_KEY, EC2_SECRET, ec2_client
from tests.jobs.running_replicas import Site, running_replicas
from tests.jobs.running_role import API
from tests.jobs.tenant_clients import ask, finish, start, token
from tests.s3_server import BUCKET, REGION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.jobs.running_role import RunningRole
    from tests.postgres import PostgresServer

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def site(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The worker of the first replica serves all tenants."""
    directory = tmp_path_factory.mktemp("site")
    with running_replicas(directory, postgres, JOBS_WORKER_SLOTS="1") as running:
        yield running


def test_image_of_one_replica_is_downloaded_from_the_other(site: Site) -> None:
    compose_id = start(site.second, "1", "vsphere")
    finish(site.second, "1", compose_id)
    path = f"{API}/composes/{compose_id}/download"
    found = [ask(role, path, "1") for role in (site.first, site.second)]
    assert found[0].body == found[1].body
    assert found[0].headers["ETag"] == found[1].headers["ETag"]
    fields = {"Authorization": f"Bearer {token('1')}", "Range": "bytes=1000-1999"}
    part = fetch(f"{site.second.url}{path}", headers=fields)
    assert (part.status, part.body) == (HTTPStatus.PARTIAL_CONTENT, found[0].body[1000:2000])


@pytest.mark.soak
def test_image_in_the_store_is_uploaded_to_s3(site: Site) -> None:
    target = {"type": "aws.s3", "upload_options": {"region": REGION}}
    compose_id = start(site.first, "1", "guest-image", target)
    (upload,) = finish(site.second, "1", compose_id)["image_status"]["upload_statuses"]
    uploaded = fetch(upload["options"]["url"])
    downloaded = ask(site.second, f"{API}/composes/{compose_id}/download", "1")
    assert uploaded.status == HTTPStatus.OK
    assert hashlib.sha256(uploaded.body).digest() == hashlib.sha256(downloaded.body).digest()


def test_process_serves_the_apis_that_it_is_for(site: Site) -> None:
    path = "/api/image-builder-worker/v1/openapi"
    assert fetch(f"{site.first.url}{path}").status == HTTPStatus.OK
    assert fetch(f"{site.second.url}{path}").status == HTTPStatus.NOT_FOUND


def test_one_signature_makes_one_task_on_both_replicas(site: Site) -> None:
    credential = Ec2Credential(EC2_KEY, EC2_SECRET, "", ("*",), ("*",))
    form = {
        "Action": "ImportVolume",
        "Version": "2016-11-15",
        "Image.Format": "RAW",
        "Image.Bytes": "1048576",
        "Image.ImportManifestUrl": f"{site.object_store}/{BUCKET}/no-manifest",
        "Volume.Size": "1",
    }
    request = signed_request(form, at=datetime.now(UTC), credential=credential)

    def send(role: RunningRole) -> bytes:
        answer = fetch(f"{role.url}/", "POST", headers=request.headers, body=request.body)
        assert answer.status == HTTPStatus.OK, answer.body
        return re.sub(rb"<requestId>[^<]*", b"", answer.body)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(send, [site.first, site.second] * 4))
    assert set(answers) == {answers[0]}
    with closing(ec2_client(site.first.url)) as first, closing(ec2_client(site.second.url)) as second:
        (task,) = second.describe_conversion_tasks()["ConversionTasks"]
        (same,) = first.describe_conversion_tasks()["ConversionTasks"]
        assert same["ConversionTaskId"] == task["ConversionTaskId"]
        assert task["ConversionTaskId"].encode() in answers[0]
        assert task["State"] == "active"
        assert task["StatusMessage"].startswith("image upload awaited")  # and perhaps why
        second.cancel_conversion_task(ConversionTaskId=task["ConversionTaskId"])
        (task,) = first.describe_conversion_tasks()["ConversionTasks"]
        assert task["State"] == "cancelled"
