"""The arguments of ``image-service images``: the base images of a service, or of its data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.cli.shared.command import add_admin_arguments

if TYPE_CHECKING:
    import argparse

    from image_service.common.command_line.parser import AddParser


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "images",
        help="list, verify, fetch or remove base images",
        description="Work on the base images of DATA_DIR, as OS_IMAGES and the rest of the environment"
        " configure them; or list those of a running service (--admin), with why one is not ready, and when"
        " it is tried again.",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="show the state of each")
    add_admin_arguments(listing, "--url")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=run, verb="list")
    for name, count, text in (
        ("verify", "*", "read every byte, and compare with the digests that are known"),
        ("fetch", "*", "fetch the images of OS_IMAGES and COREOS_STREAMS that are absent, and verify them"),
        ("remove", "+", "remove fetched images, and the files derived from them"),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("versions", nargs=count, metavar="VERSION", help="OS build")
        verb.set_defaults(run=run, verb=name)
        if name == "remove":
            verb.add_argument(
                "--force", action="store_true", help="also images that were not downloaded, or were changed"
            )


def run(options: argparse.Namespace) -> int:
    """Run the verb; return the exit status."""
    # Imported here because no other command needs them.
    from image_service.cli.image_verbs import VERBS  # noqa: PLC0415

    return VERBS[options.verb](options)
