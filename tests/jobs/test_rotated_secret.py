"""A role whose secret is rotated between starts: images stay, and without the old secret that is told."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.jobs.running_role import running_role

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.soak]

CONFIG = b'{"ignition": {"version": "3.3.0"}, "passwd": {"users": [{"name": "s3cr3t"}]}}'


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_images_of_before_are_served_while_the_old_secret_is_there(
    tmp_path: Path, request: pytest.FixtureRequest, database: str
) -> None:
    file = tmp_path / "secret"
    old, new = (secrets.token_hex(32) for _ in range(2))
    variables = {"INSTANCE_SECRET_FILE": str(file), "JOBS_WORKER_SLOTS": "0"}
    if database == "postgresql":
        variables["DATABASE_URL"] = request.getfixturevalue("postgres").create_database()
    file.write_text(f"{old}\n")
    file.chmod(0o600)
    with running_role(tmp_path, **variables) as role:
        before = role.start("live-installer", config=CONFIG)
        assert role.wait_until_ended(before)["status"] == "success"
        image = role.get(f"/composes/{before}/download")
        assert image.status == 200
    file.write_text(f"{new}\n{old}\n")
    with running_role(tmp_path, **variables) as role:
        again = role.get(f"/composes/{before}/download")
        assert (again.status, again.body, again.headers["ETag"]) == (200, image.body, image.headers["ETag"])
        after = role.start("live-installer", config=CONFIG)
        assert role.wait_until_ended(after)["status"] == "success"
    file.write_text(f"{new}\n")
    with running_role(tmp_path, **variables) as role:
        refused = role.get(f"/composes/{before}/download")
        assert refused.status == 500
        assert "INSTANCE_SECRET_FILE" in refused.body.decode()
        assert role.get(f"/composes/{after}/download").body == image.body
        listed = json.loads(role.get("/composes/").body)
        assert {compose["id"] for compose in listed} == {before, after}
        assert "s3cr3t" not in role.log
        assert "Traceback" not in role.log
