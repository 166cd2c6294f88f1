"""``image-service link``: makes a short link, or revokes all, by requests to a running service."""

from __future__ import annotations

import argparse
import json
import re
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from image_service.cli.shared.admin import DEFAULT_ADMIN, admin_client
from image_service.cli.shared.command import add_admin_arguments
from image_service.cli.shared.input import STANDARD_INPUT
from image_service.cli.shared.patience import wait_for
from image_service.core.errors import NotFound

if TYPE_CHECKING:
    from image_service.common.command_line.parser import AddParser
    from image_service.server.admin.client import AdminClient

_EXAMPLES = """\
examples:
  image-service link http://images.example.com/byid/INFRA_ENV/4.20/x86_64/full.iso
  image-service link --admin http://127.0.0.1:8081 --expires-in 12h --pinned - <url
  image-service link --revoke-all
"""

_PATH = "/api/v1/links"
_TIME = re.compile("([0-9]{1,9})([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "link",
        help="make a short link to an image, or revoke all",
        description="Make a short link to an ISO, an initrd for PXE or an iPXE script, and print it. The link"
        " opens the file with the credentials of URL until it expires or is revoked. The command sends a"
        " request to a running service: to --admin, to the ADMIN_LISTEN of the environment, or to"
        f" {DEFAULT_ADMIN}.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "url",
        nargs="?",
        metavar="URL",
        help="of the image, with its credentials; - is standard input, hidden from ps",
    )
    what.add_argument(
        "--revoke-all",
        action="store_true",
        help="revoke all links that can be used, as after the restore of a database, and print how many",
    )
    add_admin_arguments(parser)
    parser.add_argument(
        "--expires-in",
        type=_parse_seconds,
        metavar="TIME",
        help="how long the link is valid, such as 90, 90s, 30m, 12h or 7d (default: a day)",
    )
    parser.add_argument("--label", default="", metavar="TEXT", help="text that the list of links shows")
    parser.add_argument(
        "--pinned", action="store_true", help="the link keeps the present version of the image"
    )
    parser.add_argument("--json", action="store_true", help="print the id and the end of the link, too")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the URL of the new link, or how many links were revoked."""
    client = admin_client(options)
    if options.revoke_all:
        print(_revoke_all(client))  # noqa: T201 - the command's output
        return 0
    url = sys.stdin.readline().strip() if options.url == STANDARD_INPUT else options.url
    document = {"url": url, "label": options.label, "pinned": options.pinned}
    if options.expires_in is not None:
        document["expires_in"] = options.expires_in
    made = json.loads(wait_for("the image", partial(client.post, _PATH, document)))
    print(json.dumps(made, indent=2) if options.json else made["url"])  # noqa: T201 - the command's output
    return 0


def _revoke_all(client: AdminClient) -> int:
    links = json.loads(client.get(_PATH))["links"]
    for link in links:
        with suppress(NotFound):  # it has ended since
            client.request("DELETE", f"{_PATH}/{quote(link['id'], safe='')}")
    return len(links)


def _parse_seconds(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError("must be a time such as 90, 90s, 30m, 12h or 7d")
    return int(found[1]) * _UNITS[found[2]]
