"""The completions work in the shells that they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import run_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cu"], {"customize"}),
        (["iso", ""], {"ignition", "kargs", "reset"}),
        (["iso", "kargs", "sh"], {"show"}),
        (["customize", "--karg-"], {"--karg-append", "--karg-delete", "--karg-replace"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["inspect", "ba"], {"base.iso"}),
    ],
)
def test_bash_completes_words(run: Run, base: Path, words: list[str], expected: set[str]) -> None:
    script = base.with_name("completion.bash")
    script.write_bytes(run("completion", "bash").output)
    line = " ".join(f"'{word}'" for word in ("image-service", *words))
    code = (
        f"cd {base.parent}; . {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)};"
        " _shtab_image_service; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    completed = run_client("bash", "--norc", "-c", code).decode().split()
    assert {word for word in completed if word not in {"-h", "--help"}} == expected


@pytest.mark.parametrize(
    ("shell", "line"),
    [("zsh", "#compdef image-service"), ("fish", "complete -c image-service")],
)
def test_other_shells_have_a_script(run: Run, shell: str, line: str) -> None:
    ran = run("completion", shell)
    assert (ran.status, ran.errors) == (0, "")
    assert line in ran.output.decode()
    assert "customize" in ran.output.decode()
