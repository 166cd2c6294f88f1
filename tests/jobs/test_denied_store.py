"""A role whose user of the object store lacks rights, and gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.service import fetch
from tests.jobs.running_role import API, running_role, wait_until
from tests.s3_server import BUCKET, PREFIX, S3User, running_s3_server_with_user

if TYPE_CHECKING:
    from pathlib import Path

    from tests.jobs.running_role import RunningRole

pytestmark = [pytest.mark.acceptance, pytest.mark.soak]

ON_BUCKET = ("ListBucketMultipartUploads",)
ALL = ("PutObject", "GetObject", "DeleteObject", "AbortMultipartUpload")


def objects_of(user: S3User) -> list[Path]:
    return [path for path in (user.server.directory / PREFIX).rglob("*") if path.is_file()]


def test_refusals_of_the_store_are_told_and_lose_nothing(tmp_path: Path) -> None:
    with running_s3_server_with_user(tmp_path / "s3") as user:
        user.permit("GetObject")
        variables = {**user.environment, "STORE_URL": f"s3://{BUCKET}/{PREFIX}"}
        with running_role(tmp_path, **variables) as role:
            refused: Any = role.wait_until_ended(role.start("minimal-raw"))
            reason = refused["image_status"]["error"]["reason"]
            assert "the object store in S3: cannot put an object: AccessDenied (status 403)" in reason
            assert objects_of(user) == []

            user.permit("PutObject", "GetObject")
            compose_id = role.start("minimal-raw")
            assert role.wait_until_ended(compose_id)["status"] == "success"
            (stored,) = objects_of(user)
            assert download(role, compose_id) == (200, stored.stat().st_size)

            user.permit("PutObject")
            assert download(role, compose_id)[0] == 503
            assert fetch(f"{role.url}{API}/composes/{compose_id}", "DELETE").status == 200
            wait_until(lambda: "cannot delete an object: AccessDenied" in role.log, lambda: role.log)
            assert objects_of(user) == [stored]

            user.permit(*ALL, on_bucket=ON_BUCKET)
            wait_until(lambda: objects_of(user) == [], lambda: role.log)
            wait_until(lambda: "upkeep works again" in role.log, lambda: role.log)
        assert "Traceback" not in role.log


def download(role: RunningRole, compose_id: str) -> tuple[int, int]:
    answer = role.get(f"/composes/{compose_id}/download")
    return answer.status, len(answer.body)
