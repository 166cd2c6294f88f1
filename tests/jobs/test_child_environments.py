"""The environments of all processes that the jobs role starts: secrets reach only those that use them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.jobs.running_role import running_role, wait_until
from tests.processes import descendants

pytestmark = pytest.mark.acceptance

SECRETS = {
    "OS_IMAGES_REQUEST_HEADERS": json.dumps({"X-Key": "hidden-of-origins"}),
    "OS_IMAGES_REQUEST_QUERY_PARAMS": json.dumps({"key": "hidden-of-origins"}),
    "DATABASE_PASSWORD": "hidden-of-nobody",
    "VAULT_TOKEN": "hidden-of-nobody",
}
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "hidden-of-the-store",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN": "hidden-of-the-store",
}
TOOLKIT = """\
#!/bin/sh
cat /proc/self/environ >{calls}/"$1.$$"
exec "{python}" -m image_service.toolkit "$@"
"""


def test_no_child_has_a_secret_that_it_does_not_use(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    toolkit = tmp_path / "toolkit"
    toolkit.write_text(TOOLKIT.format(calls=shlex.quote(str(calls)), python=sys.executable))
    toolkit.chmod(0o700)
    with running_role(tmp_path, TOOLKIT=str(toolkit), **SECRETS, **CREDENTIALS) as role:
        wait_until(lambda: "takes jobs of" in role.log, lambda: role.log)
        compose_id = role.start("guest-image")
        assert role.wait_until_ended(compose_id)["status"] == "success", role.log
        children = {
            name: _environment(descendants(role.process.pid, part)[0])
            for name, part in {"worker": "image_service.cli\0worker", "engine": "temporal\0server"}.items()
        }
    toolkits = {name: path.read_bytes() for path in calls.iterdir() if (name := path.name.partition(".")[0])}
    assert toolkits.keys() >= {"--version", "customize", "convert"}
    environments = {**children, **toolkits}
    assert [name for name, text in environments.items() if b"hidden-of-origins" in text] == []
    assert [name for name, text in environments.items() if b"hidden-of-nobody" in text] == []
    assert [name for name, text in environments.items() if b"hidden-of-the-store" in text] == ["worker"]


def _environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
