"""``image-service doctor``: checks whether a machine could boot from a URL."""

from __future__ import annotations

import argparse
import shutil
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING

from image_service.cli.shared.command import add_admin_arguments
from image_service.common.command_line.parser import EXIT_FAILURE, exit_on_signals
from image_service.core.errors import InvalidArguments
from image_service.tools.doctor.outcomes import (
    has_failed,
    render_by_status,
    render_json,
    render_outcome,
    render_summary,
)
from image_service.tools.doctor.rules import ClientProfile
from image_service.tools.doctor.target import ImageUrl

if TYPE_CHECKING:
    from image_service.common.command_line.parser import AddParser

_EXAMPLES = """\
examples:
  image-service doctor https://images.example.com/s/0123456789abcdef.iso
  image-service doctor http://192.0.2.1:8080/images/live.iso --profile supermicro
  image-service doctor http://192.0.2.1:8080/images/live.iso --deep --json
"""


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "doctor",
        help="check whether a machine could boot from a URL",
        description="Check the URL of a boot image, of this service or of any server: the URL, the way to the"
        " server, TLS, responses, ranges, and the image itself. Each limit is printed with its source; a"
        " check whose limit is not known for a client is skipped.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", type=_parse_url, metavar="URL", help="of the image, with its credentials")
    parser.add_argument(
        "--profile", choices=list(map(str, ClientProfile)), help="check for this client only (default: any)"
    )
    parser.add_argument(
        "--deep", action="store_true", help="read the whole image, and compare a thousand random ranges"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-v", "--verbose", action="store_true", help="print a line for each check, when it has been made"
    )
    form.add_argument("--json", action="store_true", help="print JSON")
    add_admin_arguments(parser)
    parser.set_defaults(run=run)


def _parse_url(text: str) -> ImageUrl:
    try:
        return ImageUrl.parse(text)
    except InvalidArguments as error:
        raise argparse.ArgumentTypeError(error.detail) from None


def run(options: argparse.Namespace) -> int:
    """Print the outcomes of the checks; return 1 if one has failed."""
    # Imported here because no other command needs them.
    from image_service.server.admin.client import AdminClient  # noqa: PLC0415
    from image_service.tools.doctor.examination import Examination  # noqa: PLC0415
    from image_service.tools.doctor.requests_seen import ServerView  # noqa: PLC0415

    exit_on_signals()
    outcomes = []
    width = shutil.get_terminal_size().columns
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals that cannot show the symbols
    admin = AdminClient(options.admin or "", options.token_file, options.ca_file)
    examination = Examination(
        url=options.url,
        profile=ClientProfile(options.profile) if options.profile else None,
        ca_file=options.ca_file,
        deep=options.deep,
        fetch_view=(lambda: ServerView.fetch(admin.get)) if options.admin else None,
    )
    for outcome in examination.run():
        outcomes.append(outcome)
        if options.verbose:
            sys.stdout.write(render_outcome(outcome, width))
            sys.stdout.flush()
    if options.json:
        sys.stdout.write(render_json(outcomes))
    else:
        sys.stdout.write("" if options.verbose else render_by_status(outcomes, width))
        sys.stdout.write(render_summary(outcomes))
    return EXIT_FAILURE if has_failed(outcomes) else 0
