"""What a program sees and may do, for each isolation, as root and as a user without privileges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from image_service.common.programs.isolation import find_isolation
from tests.acceptance.clients import needs_client
from tests.toolkit.workspace.calls import workspace_in

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
USER = 1234
# A call in a process of its own, which prints what its program saw.
CALL = """
import json, os, sys
from pathlib import Path
from image_service.common.programs import isolation
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace

directory, secret, image = map(Path, sys.argv[1:4])
warnings = []
call = Workspace(directory, Limits(), Progress(lambda *_: None), warnings.append)
with call as workspace, image.open("r+b") as file:
    script = f'''
        grep -E "^(Cap|NoNewPrivs)" /proc/self/status | sort
        echo interfaces $(tail -n +3 /proc/net/dev | cut -d: -f1)
        echo addresses $(cat /proc/net/fib_trie 2>/dev/null | wc -l)
        echo secret $(cat {secret} 2>/dev/null)
        echo image $(cat /proc/self/fd/{file.fileno()})
        echo changed 1<>/proc/self/fd/{file.fileno()}
        echo written > written && echo made $(cat written)
        echo environment $TOKEN
    '''
    for _ in range(2):
        output = workspace.run(["sh", "-c", script], descriptors=[file.fileno()])
print(json.dumps([isolation.find_isolation(), warnings, output.decode(), image.read_bytes().decode()]))
"""


@pytest.fixture
def files() -> Iterator[Path]:
    """Yield a directory that other users can reach too, with a secret and an image."""
    with TemporaryDirectory() as directory:
        place = Path(directory)
        place.chmod(0o755)
        (place / "secret").write_text("secret")
        (place / "image").write_text("content")
        (place / "image").chmod(0o600)
        yield place


def own(place: Path, user: int) -> None:
    for path in (place, *place.iterdir()):
        os.chown(path, user, user)


def call(place: Path, *before: str) -> tuple[str, list[str], list[str], str]:
    """Return the isolation, the warnings, what the program printed, and the image afterwards."""
    done = subprocess.run(
        [*before, sys.executable, "-c", CALL, place, place / "secret", place / "image"],
        cwd=ROOT,
        env={**os.environ, "TOKEN": "token", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    isolation, warnings, output, image = json.loads(done.stdout)
    assert sorted(path.name for path in place.iterdir()) == ["image", "secret"]
    return isolation, warnings, output.splitlines(), image


def sees_nothing(lines: list[str]) -> None:
    """Check what holds in bwrap and unshare: no capability, no network, no variable of the environment."""
    assert [line.split()[1] for line in lines if line.startswith("Cap")] == ["0" * 16] * 5
    assert "NoNewPrivs:\t1" in lines
    assert "interfaces lo" in lines
    assert "environment" in lines
    assert "made written" in lines


def test_program_in_bwrap_sees_no_file_of_the_host_but_the_image(files: Path) -> None:
    needs_client("bwrap")
    isolation, warnings, lines, image = call(files)
    assert (isolation, warnings) == ("bwrap", [])
    sees_nothing(lines)
    assert "secret" in lines
    assert "image changed" in lines  # by the first of two programs
    assert image == "changed\n"


def test_program_of_an_unprivileged_user_is_isolated(files: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    needs_client("bwrap")
    own(files, USER)
    user = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
    imports = [*user, sys.executable, "-c", "import image_service.core.errors"]
    if subprocess.run(imports, cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip(
            "other users cannot read the checkout or the interpreter, which the program of another user needs"
        )
    isolation, warnings, lines, image = call(files, *user)
    assert (isolation, warnings) == ("bwrap", [])
    sees_nothing(lines)
    assert "secret" in lines
    assert image == "changed\n"


def test_program_of_root_opens_an_image_of_another_user(files: Path) -> None:
    """It has one capability then, that to open files of others; it sees none of the host's."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    needs_client("bwrap")
    own(files, USER)
    os.chown(files, 0, 0)
    _, _, lines, image = call(files)
    assert image == "changed\n"
    assert "secret" in lines
    assert "CapEff:\t0000000000000002" in lines


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_bwrap_programs_have_no_network_and_no_capabilities(files: Path) -> None:
    """An empty file is mounted over bwrap."""
    bwrap = needs_client("bwrap")
    hide = ("unshare", "--mount", "sh", "-c", f'mount --bind /dev/null {bwrap}; exec "$@"', "sh")
    isolation, warnings, lines, image = call(files, *hide)
    assert (isolation, warnings) == ("unshare", [])
    sees_nothing(lines)
    assert image == "changed\n"


def test_without_user_namespaces_programs_run_with_one_warning(files: Path) -> None:
    """As in a container that forbids them: a user namespace that allows none below itself."""
    forbid = (
        'echo 0 > /proc/sys/user/max_user_namespaces && echo 0 > /proc/sys/user/max_net_namespaces; exec "$@"'
    )
    isolation, warnings, lines, image = call(
        files, "unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"
    )
    assert (isolation, warnings) == (
        "none",
        ["programs run without isolation: neither bwrap nor unshare works here"],
    )
    assert [line.split()[1] for line in lines if line.startswith("Cap")] == ["0" * 16] * 5
    assert "NoNewPrivs:\t1" in lines
    assert image == "changed\n"


def test_device_and_file_in_writes_are_writable_and_others_are_not(tmp_path: Path) -> None:
    if find_isolation() != "bwrap":
        pytest.skip("only bwrap hides the other files; this machine forbids its namespaces")
    (tmp_path / "writable").touch()
    (tmp_path / "other").touch()
    script = 'echo x > "$1"; echo x > "$2"; echo x > /usr/bin/new; true'
    with workspace_in(tmp_path) as workspace:
        workspace.run(
            ["sh", "-c", script, "sh", tmp_path / "writable", tmp_path / "other"],
            writes=[tmp_path / "writable"],
        )
        workspace.run(["sh", "-c", "! test -e /dev/loop-control"])
        workspace.run(["test", "-c", "/dev/loop-control"], writes=[Path("/dev/loop-control")])
    assert (tmp_path / "writable").read_text() == "x\n"
    assert (tmp_path / "other").read_text() == ""
    assert not Path("/usr/bin/new").exists()
