"""Remote bases in an S3 bucket: credentials, an object that is overwritten, one that cannot be pinned."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.image_states import PATIENCE_SECONDS, images_of, until
from tests.acceptance.remote import (
    CONFIG,
    RangeReader,
    etag_of,
    get_ready,
    image_path,
    local_entry,
    remote_entry,
)
from tests.acceptance.service import run_service
from tests.remote_base import MIB, dense_base
from tests.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Service

pytestmark = pytest.mark.acceptance

MEGABYTES = 12
NEWCOMER_SECONDS = 300  # ten times what is promised


@pytest.fixture
def s3_server(tmp_path: Path) -> Iterator[S3Server]:
    """Run a server."""
    with running_s3_server(tmp_path / "s3") as server:
        yield server


def check_no_secret(service: Service) -> None:
    """Search all that the service reports for credentials and for presigned URLs."""
    reported = service.output + service.get("/images").body + service.get("/metrics").body
    files = [path for path in service.directory.joinpath("data").rglob("*") if path.is_file()]
    stored = b"".join(path.read_bytes() for path in files if path.stat().st_size < MIB)
    for secret in (SECRET_KEY, ACCESS_KEY, "X-Amz-Signature"):
        assert secret.encode() not in reported + stored


def test_overwritten_object_is_a_new_version(s3_server: S3Server, tmp_path: Path) -> None:
    old, new = dense_base(MEGABYTES), dense_base(MEGABYTES, seed=1)
    paths = {name: tmp_path / f"{name}.iso" for name in ("old", "new")}
    paths["old"].write_bytes(old)
    paths["new"].write_bytes(new)
    (s3_server.directory / "a.iso").write_bytes(old)
    entries = [
        remote_entry(s3_server.publish("a.iso"), "remote"),
        *(local_entry(path, name) for name, path in paths.items()),
    ]
    with run_service(tmp_path, entries, environment=s3_server.environment) as service:
        infra_env = service.register("old", CONFIG)
        path = image_path(infra_env, "remote")
        contents = {name: get_ready(service, image_path(infra_env, name)).body for name in paths}
        until(service, "remote", "ready")
        old_etag = etag_of(service, path)
        (s3_server.directory / "next").write_bytes(new)
        os.setxattr(s3_server.directory / "next", "user.etag", b'"2"')
        (s3_server.directory / "next").rename(s3_server.directory / "a.iso")
        deadline = time.monotonic() + NEWCOMER_SECONDS
        while (etag := etag_of(service, path)) == old_etag:
            with closing(RangeReader(service, path, {old_etag: contents["old"]})) as mounted:
                assert not mounted.read(len(old) - 2 * MIB, 4096)
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with closing(RangeReader(service, path, {etag: contents["new"]}, "127.0.0.2")) as newcomer:
            newcomer.read_everything()
        check_no_secret(service)


def test_wrong_key_and_missing_etag_are_reported(s3_server: S3Server, tmp_path: Path) -> None:
    """An object without the ETag of a PUT cannot be pinned; another key may not read the bucket at all."""
    (s3_server.directory / "bare.iso").write_bytes(dense_base(MEGABYTES))
    (s3_server.directory / "a.iso").write_bytes(dense_base(MEGABYTES))
    entries = [remote_entry("s3://images/bare.iso", "bare"), remote_entry(s3_server.publish("a.iso"), "good")]
    environment = {**s3_server.environment, "READY_WHEN": "any"}
    (tmp_path / "good").mkdir()
    with run_service(tmp_path / "good", entries, environment=environment) as service:
        assert "validator" in until(service, "bare", "refused")["reason"]
        check_no_secret(service)
    environment = {**environment, "AWS_SECRET_ACCESS_KEY": "another-key"}
    (tmp_path / "bad").mkdir()
    with run_service(tmp_path / "bad", entries[1:], environment=environment, probe="/live") as service:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "403" not in str(images_of(service)["good"].get("reason")):
            assert time.monotonic() < deadline, images_of(service)
            time.sleep(0.05)
        assert b"another-key" not in service.output
        check_no_secret(service)
