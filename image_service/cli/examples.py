"""``image-service examples``: writes the examples of an operator's files, which are part of the package."""

from __future__ import annotations

import errno
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from image_service.common.command_line.parser import AddParser


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "examples",
        help="write an example configuration, a systemd unit, alerts and a dashboard",
        description="Write the example configuration, the systemd unit, the rules for Prometheus and the"
        " dashboard for Grafana into a directory, and print their names.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="created if it does not exist")
    parser.add_argument("-f", "--force", action="store_true", help="overwrite files that exist")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write all files; none if one of them exists and is not to be overwritten."""
    contents = {
        options.directory / source.name: source.read_bytes()
        for source in sorted((files("image_service") / "examples").iterdir(), key=lambda each: each.name)
        if source.is_file()  # a checkout has directories beside them, for Kubernetes
    }
    for path in contents:
        if path.exists() and not options.force:
            raise FileExistsError(errno.EEXIST, "exists; --force overwrites it", str(path))
    options.directory.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        path.write_bytes(content)
        print(path)  # noqa: T201 - the command's output
    return 0
