"""Inputs that are not files: pipes, and the names of standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.piping import pipe_with, run_piped

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run

CONFIG = b'{"ignition": {"version": "3.3.0"}}\n'
NAMES = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_standard_input_is_read_from_a_pipe(base: Path, name: str) -> None:
    iso = base.read_bytes()
    extracted = run_piped("extract", name, "kernel", "-o", "-", content=iso)
    assert (extracted.returncode, extracted.stdout) == (0, b"kernel data\n")
    listed = run_piped("digests", name, content=iso)
    assert listed.stdout == run_piped("digests", base).stdout


@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_standard_input_can_be_a_config(run: Run, base: Path, out: Path, name: str) -> None:
    config = base.with_name("config.ign")
    config.write_bytes(CONFIG)
    assert run("customize", base, "--ignition", config, "-o", out).status == 0
    made = run_piped("customize", base, "--ignition", name, "-o", "-", content=CONFIG)
    assert made.stdout == out.read_bytes()


@pytest.mark.parametrize(("first", "second"), [*zip(NAMES, reversed(NAMES), strict=True)])
def test_standard_input_is_read_once_by_whatever_names(run: Run, base: Path, first: str, second: str) -> None:
    refused = run("customize", base, "--ignition", first, "--ramdisk", second, "-o", "-")
    assert (refused.status, "standard input can be read once only" in refused.errors) == (2, True)


def test_pipe_is_read_as_a_file(run: Run, base: Path, out: Path) -> None:
    """By the name that a shell gives to <(program)."""
    with pipe_with(base.read_bytes()) as pipe:
        assert run("extract", f"/dev/fd/{pipe}", "kernel", "-o", out).status == 0
    assert out.read_bytes() == b"kernel data\n"
    with pipe_with(base.read_bytes()) as pipe:
        assert run("digests", f"/dev/fd/{pipe}").output == run("digests", base).output
    with pipe_with(CONFIG) as pipe:
        assert run("customize", base, "--ignition", f"/dev/fd/{pipe}", "-o", "-").status == 0


@pytest.mark.parametrize("verb", [("inspect",), ("extract", "kernel", "-o", "-"), ("digests",)])
def test_other_inputs_are_refused_by_their_kind(run: Run, tmp_path: Path, verb: tuple[str, ...]) -> None:
    for path in (tmp_path, "/dev/null"):
        refused = run(verb[0], path, *verb[1:])
        assert (refused.status, refused.errors) == (
            1,
            f"image-service: {path} is not a regular file\n",
        )
