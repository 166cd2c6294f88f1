from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import TYPE_CHECKING

import pytest

from image_service.cli.composer import client as compose_client
from tests.cli import composer as server
from tests.cli.composer import ID, Composer, refusal, status_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Run

IMAGE = bytes(range(256)) * 40


@pytest.fixture
def composer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Composer]:
    """A server on the default socket; clients poll it without pauses."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(compose_client, "_RANGE_BYTES", 1000)
    with server.running(tmp_path / "jobs.sock") as running:
        running.image.body = IMAGE
        yield running


START = ("compose", "start", "--distribution", "sample", "--type", "vsphere-ova")


def test_start_sends_the_request_and_prints_the_id(run: Run, composer: Composer, tmp_path: Path) -> None:
    config = tmp_path / "config.ign"
    config.write_text('{"ignition": {"version": "3.4.0"}}')
    result = run(*START, "--ignition", config, "--karg-append", "a=1", "--karg-append", "b", "--size", 2**30)
    assert (result.status, result.output.decode()) == (0, f"{ID}\n")
    image = {
        "architecture": "x86_64",
        "image_type": "vsphere-ova",
        "repositories": [],
        "upload_targets": [{"type": "local", "upload_options": {}}],
        "size": 2**30,
    }
    customizations = {
        "ignition": {"embedded": {"config": base64.b64encode(config.read_bytes()).decode()}},
        "kernel": {"append": "a=1 b"},
    }
    document = {"distribution": "sample", "image_requests": [image], "customizations": customizations}
    assert composer.requests == [("POST", "/compose", document)]


def test_start_may_upload(run: Run, composer: Composer) -> None:
    assert run(*START, "--s3-region", "eu-1", "--public").status == 0
    target = {"type": "aws.s3", "upload_options": {"region": "eu-1", "public": True}}
    assert composer.requests[0][2]["image_requests"][0]["upload_targets"] == [target]
    assert run(*START, "--public").status == 1


def test_wait_ends_with_the_compose(run: Run, composer: Composer) -> None:
    progress = {"progress": {"done": 1, "total": 2}}
    # The first answers the POST.
    composer.statuses = [status_of("pending"), *map(status_of, ("pending", "pending"))]
    composer.statuses += [status_of("building", **progress), status_of("success")]
    result = run(*START, "--wait")
    assert (result.status, result.output.decode()) == (0, f"{ID}\n")
    assert result.errors.splitlines() == ["pending", "building: 1 of 2 jobs have ended", "success"]


def test_wait_fails_with_the_compose(run: Run, composer: Composer) -> None:
    error = {"id": 10, "reason": "step convert: no room", "details": "1 byte"}
    composer.statuses = [status_of("failure", error=error)]
    result = run(*START, "--wait")
    assert result.status == 1
    assert result.errors.endswith("the compose has failed: step convert: no room: 1 byte\n")


def test_download_outlasts_a_restart_of_the_server(run: Run, composer: Composer) -> None:
    composer.refusals = [refusal(503, "the service cannot answer now", **{"Retry-After": "1"})] * 3
    assert run("compose", "download", ID, "-o", "-").output == IMAGE


def test_start_waits_and_downloads(run: Run, composer: Composer, tmp_path: Path) -> None:
    target = tmp_path / "sample.ova"
    composer.digest = f"sha-256=:{base64.b64encode(hashlib.sha256(IMAGE).digest()).decode()}:"
    assert run(*START, "-o", target).status == 0
    assert target.read_bytes() == IMAGE
    downloads = [path for _, path, _ in composer.requests if path.endswith("/download")]
    assert len(downloads) == len(IMAGE) // 1000 + 1


def test_existing_file_is_kept(run: Run, composer: Composer, tmp_path: Path) -> None:
    target = tmp_path / "sample.ova"
    target.write_text("mine")
    assert run(*START, "-o", target).status == 1
    assert composer.requests == []
    assert target.read_text() == "mine"
    assert run("compose", "download", ID, "-o", target, "--force").status == 0
    assert target.read_bytes() == IMAGE


def test_interrupted_download_continues(run: Run, composer: Composer) -> None:
    composer.image.cuts = [1000, 10, 0, 990]
    assert run("compose", "download", ID, "-o", "-").output == IMAGE


def test_other_bytes_are_no_image(run: Run, composer: Composer, tmp_path: Path) -> None:
    composer.digest = f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"
    result = run("compose", "download", ID, "-o", tmp_path / "image")
    assert result.status == 1
    assert "SHA-256" in result.errors
    assert not (tmp_path / "image").exists()


def test_status_is_for_people_or_programs(run: Run, composer: Composer) -> None:
    composer.statuses = [status_of("failure", error={"id": 10, "reason": "step convert", "details": "why"})]
    lines = run("compose", "status", ID).output.decode().splitlines()
    assert f"id            {ID}" in lines
    assert "error         step convert: why" in lines
    assert json.loads(run("compose", "status", ID, "--json").output) == composer.statuses[0]


def test_list_is_a_table_of_the_newest(run: Run, composer: Composer) -> None:
    header, row = run("compose", "list", "--status", "success").output.decode().splitlines()
    assert header.split() == ["ID", "STATE", "DISTRIBUTION", "ARCHITECTURE", "IMAGE", "TYPE", "CREATED", "AT"]
    assert row.split() == [ID, "success", "sample", "x86_64", "vsphere-ova", "2026-01-01T12:00:00+00:00"]
    assert composer.requests[0][1] == "/composes/?size=100&status=success"


def test_cancel(run: Run, composer: Composer) -> None:
    assert run("compose", "cancel", ID).status == 0
    assert composer.requests == [("POST", f"/composes/{ID}/cancel", {})]


def test_refusal_is_reported(run: Run, composer: Composer) -> None:
    composer.refusals = [refusal(404, "there is no compose with this id", "job does not exist")]
    result = run("compose", "status", "../x")
    assert result.status == 1
    assert "there is no compose with this id" in result.errors
    assert composer.requests[0][1] == "/composes/..%2Fx"


def test_server_must_be_known(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    result = run("compose", "list")
    assert result.status == 1
    assert f"cannot connect to unix:{tmp_path}/jobs.sock: No such file" in result.errors
    assert "is `image-service jobs` running" in result.errors
    monkeypatch.setenv("JOBS_LISTEN", "127.0.0.1:8091")
    assert "--server" in run("compose", "list").errors
    assert "--server" in run("compose", "list", "--server", "ftp://x").errors
