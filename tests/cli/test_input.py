"""Inputs that are not files: pipes, and the names of standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Run

CONFIG = b'{"ignition": {"version": "3.3.0"}}\n'
NAMES = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def image_service(*arguments: object, content: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "image_service", *map(str, arguments)]
    return subprocess.run(command, input=content, capture_output=True, check=False)


@contextmanager
def pipe_with(content: bytes) -> Iterator[str]:
    """A pipe by the name that a shell gives to <(program)."""
    reading, writing = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError), os.fdopen(writing, "wb") as file:
            file.write(content)

    writer = Thread(target=write)
    writer.start()
    try:
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
        writer.join()


@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_standard_input_is_read_from_a_pipe(base: Path, name: str) -> None:
    iso = base.read_bytes()
    extracted = image_service("extract", name, "kernel", "-o", "-", content=iso)
    assert (extracted.returncode, extracted.stdout) == (0, b"kernel data\n")
    listed = image_service("digests", name, content=iso)
    assert listed.stdout == image_service("digests", base, content=b"").stdout


@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_standard_input_can_be_a_config(run: Run, base: Path, out: Path, name: str) -> None:
    config = base.with_name("config.ign")
    config.write_bytes(CONFIG)
    assert run("customize", base, "--ignition", config, "-o", out).status == 0
    made = image_service("customize", base, "--ignition", name, "-o", "-", content=CONFIG)
    assert made.stdout == out.read_bytes()


@pytest.mark.parametrize(("first", "second"), [*zip(NAMES, reversed(NAMES), strict=True)])
def test_standard_input_is_read_once_by_whatever_names(run: Run, base: Path, first: str, second: str) -> None:
    refused = run("customize", base, "--ignition", first, "--ramdisk", second, "-o", "-")
    assert (refused.status, "standard input can be read once only" in refused.errors) == (2, True)


def test_pipe_is_read_as_a_file(run: Run, base: Path, out: Path) -> None:
    with pipe_with(base.read_bytes()) as pipe:
        assert run("extract", pipe, "kernel", "-o", out).status == 0
    assert out.read_bytes() == b"kernel data\n"
    with pipe_with(base.read_bytes()) as pipe:
        assert run("digests", pipe).output == run("digests", base).output
    with pipe_with(CONFIG) as pipe:
        assert run("customize", base, "--ignition", pipe, "-o", "-").status == 0


@pytest.mark.parametrize("verb", [("inspect",), ("extract", "kernel", "-o", "-"), ("digests",)])
def test_other_inputs_are_refused_by_their_kind(run: Run, tmp_path: Path, verb: tuple[str, ...]) -> None:
    for path in (tmp_path, "/dev/null"):
        refused = run(verb[0], path, *verb[1:])
        assert (refused.status, refused.errors) == (
            1,
            f"image-service: {path} is not a regular file\n",
        )
