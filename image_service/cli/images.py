"""``image-service images``: the base images of a running service, or of its data directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from image_service.cli.command import AddParser


def add(add_parser: AddParser) -> None:
    """Declare the command.

    Args:
        add_parser: makes its parser.
    """
    parser = add_parser(
        "images",
        help="list, verify, fetch or remove base images",
        description="Work on the base images of DATA_DIR, as OS_IMAGES and the rest of the environment"
        " configure them; or list those of a running service.",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="tell how far each is", allow_abbrev=False)
    listing.add_argument("--url", help="base URL of a running service; else DATA_DIR is looked at")
    listing.add_argument("--ca-file", type=Path, help="PEM file of authorities to trust beside the system's")
    listing.add_argument("--json", action="store_true", help="for programs")
    listing.set_defaults(run=run, verb="list")
    for name, count, text in (
        ("verify", "*", "read every byte, and tell what is not as it should be"),
        ("fetch", "*", "fetch what is configured and not there, and verify it"),
        ("remove", "+", "remove what was fetched, with all that belongs to it"),
    ):
        verb = verbs.add_parser(name, help=text, allow_abbrev=False)
        verb.add_argument("versions", nargs=count, metavar="VERSION", help="OS build")
        verb.set_defaults(run=run, verb=name)


def run(options: argparse.Namespace) -> int:
    """Do what is to be done.

    Args:
        options: as declared.

    Returns:
        exit status.

    Raises:
        ImageServiceError: nothing could be done; says why.
        OSError: same.
    """
    # Imported late: other commands need none of what comes with it.
    from image_service.cli.image_verbs import VERBS  # noqa: PLC0415

    return VERBS[options.verb](options)
