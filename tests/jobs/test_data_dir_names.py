"""Names of DATA_DIR that have a meaning in URIs, lists and templates: all that is written stays in it."""

from __future__ import annotations

import pytest

from tests.jobs.running_role import running_role
from tests.variants import soaked

pytestmark = pytest.mark.acceptance


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [
        "h#1?a=b&p%41 é;+:{x},",
        *map(soaked, ["h#1", "q?a=b", "p%41", "a b", "é&;=+", "a:b", "{x}", "a,b"]),
    ],
)
def test_role_composes_in_a_directory_of_any_name(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    parent = tmp_path_factory.mktemp("x")  # the path of a socket has at most 107 bytes
    directory = parent / name
    directory.mkdir()
    with running_role(directory) as role:
        compose_id = role.start("guest-image")
        assert role.wait_until_ended(compose_id)["status"] == "success", role.log
    assert [path.name for path in parent.iterdir()] == [name]
    assert {path.name for path in directory.iterdir()} == {"data", "log"}
    assert {path.name for path in (role.data_dir / "engine").iterdir()} >= {"lock", "pid", "temporal.sqlite"}
