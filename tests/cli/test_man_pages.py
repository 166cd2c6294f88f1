from __future__ import annotations

from pathlib import Path

import pytest

from image_service.cli.man_pages import render_all
from tests.acceptance.clients import run_client

MAN = Path(__file__).parents[2] / "man"
PAGES = render_all()


def test_manual_pages_are_current() -> None:
    assert {path.name: path.read_text() for path in MAN.iterdir()} == PAGES, "run make docs"


def test_every_command_has_a_page() -> None:
    programs = {"image-service.1", "image-toolkit.1"}
    lines = [line for page in programs for line in PAGES[page].splitlines()]
    named = {line.split()[1] for line in lines if line.startswith(".BR ")}
    assert {f"{name}.1" for name in named} == PAGES.keys() - programs


def test_page_has_options_of_the_command_and_of_its_subcommands() -> None:
    assert "\\fB\\-o\\fR, \\fB\\-\\-output\\fR \\fIFILE\\fR\n" in PAGES["image-service-customize.1"]
    assert ".SH IMAGE-SERVICE ISO KARGS SHOW\n" in PAGES["image-service-iso.1"]
    assert "\\fB\\-d\\fR, \\fB\\-\\-default\\fR\n" in PAGES["image-service-iso.1"]


@pytest.mark.parametrize("name", PAGES)
def test_man_shows_a_page_without_warnings(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PAGES[name])
    assert run_client("groff", "-man", "-ww", "-Tutf8", tmp_path / name)
