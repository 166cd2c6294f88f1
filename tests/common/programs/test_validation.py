"""Programs refuse files, and their messages show no word of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.common.programs import validation
from image_service.common.programs.validation import find_fault
from image_service.core.errors import Unavailable
from image_service.core.families.live.families import get_family
from tests.server.standalone.programs import put_double, put_ksvalidator

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
TOML_ERROR = """\
Error parsing answer file: TOML parse error at line 3, column 1
  |
3 | hunter2 = 1
  | ^^^^^^^
unknown field `hunter2`, expected `keyboard`
"""


def fault_of(family: str, config: str) -> str | None:
    validator = get_family(family).validator
    assert validator is not None
    return find_fault(validator.command, validator.fault, config.encode(), Interruption())


@pytest.mark.usefixtures("isolation")
@pytest.mark.parametrize(
    ("kickstart", "fault"),
    [
        ("lang en_US\nrootpw hunter2\n%post\necho\n%end\n", None),
        ("lang en_US\nrootpw hunter2 --hunter3\n", "line 2: Unexpected arguments to … command: ['--…']"),
        ("lang en_US\nhunter2\n", "line 2: Unknown command: …"),
    ],
)
def test_ksvalidator_says_the_line_and_no_word_of_the_file(
    monkeypatch: pytest.MonkeyPatch, kickstart: str, fault: str | None
) -> None:
    put_ksvalidator(monkeypatch)
    assert fault_of("anaconda", kickstart) == fault


@pytest.mark.parametrize(
    ("family", "messages", "fault"),
    [
        ("proxmox", TOML_ERROR, "line 3, column 1: unknown field `…`, expected `keyboard`"),
        ("talos", "1 error occurred:\n\t* the endpoint hunter2 is invalid\n", "the endpoint … is invalid"),
        ("talos", "yaml: line 3: mapping hunter\\u0032\n", "line 3: mapping …"),
    ],
)
def test_words_of_the_file_are_not_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str, messages: str, fault: str
) -> None:
    validator = get_family(family).validator
    assert validator is not None
    put_double(monkeypatch, tmp_path, validator.name, f"cat >&2 <<'END'\n{messages}END\nexit 1")
    assert fault_of(family, "hunter2 = 1\n") == fault


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo Traceback >&2; exit 1", "exited with status 1 without a message about the file"),
        ("while :; do :; done", "took more than 0.2 s"),
    ],
)
def test_program_that_does_not_check_gives_no_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, reason: str
) -> None:
    monkeypatch.setattr(validation, "_WALL_SECONDS", 0.2)
    put_double(monkeypatch, tmp_path, "ksvalidator", script)
    with pytest.raises(Unavailable, match=reason):
        fault_of("anaconda", "text\n")
