"""Generates the manual pages of both programs: ``python -m image_service.cli.man_pages DIRECTORY``."""

from __future__ import annotations

import sys
from pathlib import Path

from image_service.cli import build_parser
from image_service.common.command_line.man_pages import render_pages
from image_service.toolkit.commands import EXIT_STATUSES
from image_service.toolkit.commands import build_parser as build_toolkit_parser

_SERVICE_STATUSES = {
    "0": "done",
    "1": "refused or failed",
    "2": "invalid arguments",
    "78": "serve, jobs, worker: invalid configuration",
    "129, 130, 141, 143": "ended by SIGHUP, Ctrl-C, a closed pipe, SIGTERM",
}


def render_all() -> dict[str, str]:
    """Return all pages by file name."""
    return {
        **render_pages(build_parser(), _SERVICE_STATUSES),
        **render_pages(build_toolkit_parser(), EXIT_STATUSES),
    }


if __name__ == "__main__":
    for name, page in render_all().items():
        (Path(sys.argv[1]) / name).write_text(page)
