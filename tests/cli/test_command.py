"""Wrong command lines end with 2, in at most three lines that suggest the right word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("arguments", "program", "suggested"),
    [
        ("custmize base.iso", "image-service", "customize"),
        ("--verison", "image-service", "--version"),
        ("customize base.iso --ignit config.ign -o out.iso", "image-service customize", "--ignition"),
        ("customize base.iso --karg-apend=a -o out.iso", "image-service customize", "--karg-append"),
        ("customize base.iso --karg-append a --ouput out.iso", "image-service customize", "--output"),
        ("images lst", "image-service images", "list"),
        ("images list --jsn", "image-service images list", "--json"),
        ("iso kargs shwo base.iso", "image-service iso kargs", "show"),
        ("iso kargs show --defualt base.iso", "image-service iso kargs show", "--default"),
        ("extract base.iso rootfsimg -o -", "image-service extract", "rootfs"),
        ("completion bsh", "image-service completion", "bash"),
    ],
)
def test_wrong_word_exits_with_2_and_a_suggestion(
    run: Run, arguments: str, program: str, suggested: str
) -> None:
    refused = run(*arguments.split())
    assert (refused.status, refused.output) == (2, b"")
    fault, *hint = refused.errors.splitlines()
    assert fault.startswith(f"{program}: ")
    assert fault.endswith(f"; did you mean {suggested}?")
    assert hint == [f"Try '{program} --help'."]


@pytest.mark.parametrize(
    "arguments", ["xyzzy", "inspect base.iso --xyzzy", "inspect a b", "inspect a -x", "inspect"]
)
def test_wrong_word_that_resembles_none_gets_no_suggestion(run: Run, arguments: str) -> None:
    refused = run(*arguments.split())
    assert (refused.status, refused.errors.count("\n")) == (2, 2)
    assert "did you mean" not in refused.errors


def test_control_characters_of_a_wrong_word_are_escaped(run: Run) -> None:
    refused = run("a\n\x1b[31mb")
    assert refused.errors.startswith("image-service: argument COMMAND: must be one of ")
    assert ", not a\\n\\x1b[31mb\n" in refused.errors
    assert refused.errors.count("\n") == 2


def test_words_after_two_dashes_are_no_options(run: Run) -> None:
    refused = run("inspect", "--", "--no-such-file")
    assert (refused.status, refused.errors) == (
        1,
        "image-service: --no-such-file: No such file or directory\n",
    )
