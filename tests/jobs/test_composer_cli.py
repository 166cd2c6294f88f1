"""composer-cli itself, where ``COMPOSER_CLI`` names it: the verbs that the documentation names."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.jobs.running_role import running_role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.acceptance

BLUEPRINT = 'name = "template"\nversion = "0.0.1"\n[customizations.kernel]\nappend = "console=ttyS0"\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., tuple[int, str]]]:
    """Run the program over the socket of a role; return status and output."""
    program = os.environ.get("COMPOSER_CLI")
    if not program:  # in no registry; so it is optional under REQUIRE_CLIENTS=1, too
        pytest.skip("optional client: COMPOSER_CLI does not name composer-cli")
    directory = tmp_path_factory.mktemp("jobs")
    (directory / "blueprint.toml").write_text(BLUEPRINT)
    system = platform.freedesktop_os_release()
    alias = f"{system['ID']}-{system['VERSION_ID']}=4.17"
    with running_role(directory, DISTRIBUTION_ALIASES=alias) as role:
        socket = str(role.data_dir / "jobs.sock")

        def run(*arguments: str) -> tuple[int, str]:
            done = subprocess.run(
                [program, "--cloudsocket", socket, *arguments],
                cwd=directory,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            return done.returncode, done.stdout + done.stderr

        yield run


def test_verbs_of_the_documentation_work(run: Callable[..., tuple[int, str]]) -> None:
    assert "rhcos-4.17" in run("distros", "list")[1]
    assert "guest-image" in run("compose", "types")[1].split()
    status, text = run("compose", "start", "blueprint.toml", "guest-image", "--size", "20480", "--wait")
    compose_id = text.split()[1]
    assert (status, text.split()[-1]) == (0, "success"), run("compose", "info", compose_id)
    for verb in ("wait", "info", "image", "delete"):
        status, text = run("compose", verb, compose_id)
        assert status == 0, text
    assert run("compose", "info", compose_id)[0] != 0


@pytest.mark.parametrize("verb", ["list", "status"])
def test_verbs_of_the_older_api_name_its_socket(run: Callable[..., tuple[int, str]], verb: str) -> None:
    status, text = run("compose", verb)
    assert status != 0
    assert "api.socket does not exist" in text
