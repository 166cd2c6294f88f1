"""The command line of image-toolkit as a whole: usage, reports, completion."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.common.command_line.parser import EXIT_USAGE
from image_service.core.errors import NoRoom, TimedOut, UnusableOutput
from image_service.toolkit.commands import main
from image_service.toolkit.workspace import dependencies
from tests.variants import soaked

if TYPE_CHECKING:
    from image_service.common.programs.dependencies import Dependency


def test_unknown_verb_is_a_usage_error_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lisst"]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert "did you mean list?" in errors


def test_usage_error_is_a_json_object_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json", "--nosuch"]) == 2
    output, errors = capsys.readouterr()
    assert errors == ""
    report = json.loads(output)
    assert report["exit"] == 2
    assert "unknown option --nosuch" in report["error"]["reason"]


def test_list_names_the_packages_of_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(dependency: Dependency) -> str | None:
        return None if dependency is dependencies.QEMU_IMG else "/somewhere"

    monkeypatch.setattr("image_service.common.programs.dependencies.Dependency.find", find)
    assert main(["list", "--json"]) == 0
    verbs = {verb["name"]: verb for verb in json.loads(capsys.readouterr().out)["verbs"]}
    assert not verbs["convert"]["available"]
    assert verbs["inspect"]["available"]
    assert main(["list"]) == 0
    assert "qemu-img is missing: Debian qemu-utils, Fedora qemu-img" in capsys.readouterr().out


def test_missing_optional_dependency_disables_no_verb(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(dependency: Dependency) -> str | None:
        return None if dependency is dependencies.QEMU_SYSTEM else "/somewhere"

    monkeypatch.setattr("image_service.common.programs.dependencies.Dependency.find", find)
    assert main(["list", "--json"]) == 0
    verbs = {verb["name"]: verb for verb in json.loads(capsys.readouterr().out)["verbs"]}
    assert verbs["validate"]["available"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_verbs(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    output, _ = capsys.readouterr()
    assert "image-toolkit" in output
    assert "list" in output


def test_commands_are_printed_if_none_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("usage: image-toolkit")


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("image-toolkit ")


def modules_of_a_call(*arguments: str | Path) -> str:
    """Return the names of all modules that a call imports, behind its output."""
    code = "import sys; from image_service.toolkit.commands import main; main(); print(*sys.modules)"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_version_imports_no_verb() -> None:
    modules = modules_of_a_call("--version")
    assert "image_service.toolkit.commands.report" in modules
    assert "image_service.toolkit.commands.convert" not in modules


def test_verb_does_not_import_what_takes_longer_than_the_verb(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    disk.write_bytes(bytes(1 << 20))
    modules = modules_of_a_call("inspect", disk)
    assert "oslo_utils.imageutils.format_inspector" in modules
    assert "oslo_utils.strutils" not in modules


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (OSError(28, "No space left on device"), 7, "No space left on device"),
        (OSError(13, "Permission denied", "FILE"), 6, "FILE: Permission denied"),
        (OSError(5, "Input/output error", "FILE"), 1, "FILE: Input/output error"),
        (NoRoom("FILE needs 5 bytes"), 7, "FILE needs 5 bytes"),
        (UnusableOutput("OUT is a symlink"), 2, "OUT is a symlink"),
        (TimedOut("too long"), 8, "too long"),
        (SystemExit(143), 143, "ended by signal 15"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ValueError("bad"), 1, "internal error in test_main.py, line LINE: bad"),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_failure_is_one_json_object_and_leaves_standard_error_to_the_progress(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    reason: str,
) -> None:
    def fail(*_: object, **_named: object) -> int:
        raise error

    monkeypatch.setattr("image_service.common.programs.dependencies.Dependency.find", lambda _: "/somewhere")
    monkeypatch.setattr("image_service.toolkit.commands.convert.convert", fail)
    monkeypatch.setattr("image_service.toolkit.commands.convert.open_image", fail)
    for words in (["--progress", "json"], ["--progress=json"]):
        assert main(["convert", "in", "out", "--json", *words]) == status
        output, errors = capsys.readouterr()
        assert errors == ""
        report = json.loads(output)
        told = re.sub(r"line [0-9]+", "line LINE", report["error"]["reason"])
        assert (report["verb"], report["exit"], told) == ("convert", status, reason)


def test_control_characters_of_names_are_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    image = tmp_path / "\x1b[31m\udcff.raw"
    assert main(["inspect", str(image), "--progress=none"]) == 6
    assert "/\\x1b[31m\\udcff.raw: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--progress", "json"], ["--progress=json"]], ids=len)
def test_usage_error_leaves_standard_error_to_the_progress(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["convert", "in", "out", *words, "--nosuch"]) == 2
    output, errors = capsys.readouterr()
    assert errors == ""
    assert "unknown option --nosuch" in output


def test_help_names_all_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    helped = capsys.readouterr().out
    named = {line.split()[0] for line in helped.splitlines() if line.startswith("    ") and line[4] != " "}
    assert named >= {"list", "inspect", "validate", "convert", "customize", "fetch", "publish", "run"}


PRINTING = (
    soaked("list"),
    soaked("list --json"),
    "inspect disk.raw --json",
    soaked("inspect nosuch --json"),
    "completion zsh",
    soaked("--help"),
)


@pytest.mark.parametrize("line", PRINTING)
@pytest.mark.parametrize(
    ("reader", "status", "errors"),
    [
        ("full", 7, b"image-toolkit: standard output: No space left on device\n"),
        ("pipe closed", 141, b""),
        ("not open", 1, b"image-toolkit: standard output: Bad file descriptor\n"),
    ],
)
def test_output_that_nobody_takes_is_no_internal_error(
    tmp_path: Path, line: str, reader: str, status: int, errors: bytes
) -> None:
    (tmp_path / "disk.raw").write_bytes(bytes(512))
    reading, writing = os.pipe()
    os.close(reading)
    if reader == "full":
        os.dup2(full := os.open("/dev/full", os.O_WRONLY), writing)
        os.close(full)
    redirection = ">&-" if reader == "not open" else ""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m image_service.toolkit {line} {redirection}', sys.executable],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONUNBUFFERED": ""},
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (status, errors)


def test_signal_while_the_verb_is_imported_has_a_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_name: str) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("image_service.toolkit.commands.import_module", end)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the reactor's of the tests
    try:
        assert main(["convert", "in", "out", "--json"]) == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert json.loads(capsys.readouterr().out)["error"] == {"reason": "ended by signal 15"}


def test_verb_imports_nothing_that_only_others_need() -> None:
    code = (
        "import sys; from image_service.toolkit.commands import main; main(['inspect', '--help']);"
        "print([name for name in ('customization', 'transfer', 'commands.workflows') "
        "if 'image_service.toolkit.' + name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
