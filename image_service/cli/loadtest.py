"""The arguments of ``image-service loadtest``."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from image_service import __version__
from image_service.common.command_line.parser import exit_on_signals
from image_service.core.errors import ConfigurationError
from image_service.server.standalone.sample import SAMPLE_OPENSHIFT_VERSION, sample_iso

if TYPE_CHECKING:
    from image_service.common.command_line.parser import AddParser

PROFILES = ("mount", "boot", "download", "composer", "ztp-3500")
_FLEET = PROFILES[-1]
_EXAMPLES = """\
examples:
  image-service loadtest URL --clients 64 --duration 1m --slo 'p99<200ms' --slo 'errors<0.1%'
  image-service loadtest --urls urls.txt --profile download --clients 500 --rate 10KiB/s --report out
  image-service loadtest 'http://localhost:8080/byid/{infra_env}/sample/x86_64/full.iso' \\
      --infra-envs 100 --api http://localhost:8090
  image-service loadtest http://localhost:8091/api/image-builder-composer/v2 --profile composer \\
      --slo 'p95<200ms' --slo 'errors<5%'
  image-service loadtest --profile ztp-3500 --report out

It generates as much load as it can: use it only against your own servers.
"""


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "loadtest",
        help="load a server with clients that verify what they read",
        description="Read images as many machines do at once, verify every byte, and report how it went.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("urls", nargs="*", metavar="URL", help="of an image; {infra_env} in it is filled in")
    parser.add_argument("--urls", dest="urls_file", metavar="FILE", help="more URLs, one a line; - is stdin")
    parser.add_argument(
        "--infra-envs",
        metavar="N|FILE",
        help="for {infra_env}: identifiers, one a line; or how many to register with --api for the test",
    )
    parser.add_argument(
        "--api", metavar="URL", help="where to register them; $STANDALONE_TOKEN is its token, if it has one"
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'|@FILE",
        help="field for each request; shown nowhere; repeatable",
    )
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument(
        "--cacert", metavar="FILE", help="PEM file of authorities to trust beside the system's"
    )
    trust.add_argument("--insecure", action="store_true", help="trust any certificate")
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default=PROFILES[0],
        help="ranges as a BMC reads them, the first of them only, whole images, composes of the jobs role,"
        " or a fleet that installs itself, from services that the test starts (default: mount)",
    )
    parser.add_argument(
        "--compose",
        metavar="FILE",
        help="with --profile composer: JSON of the requests (default: a minimal ISO of the sample)",
    )
    parser.add_argument(
        "--clients", metavar="N", help="that read at once (default: 16; a fleet's hosts: 3500)"
    )
    parser.add_argument(
        "--duration", metavar="TIME", help="such as 30s or 5m (default: 30s; of a fleet at most: 45m)"
    )
    parser.add_argument("--ranges", metavar="N", help="that each host of a fleet reads (default: 3000)")
    parser.add_argument("--start", metavar="TIME", help="in which the hosts of a fleet start (default: 10m)")
    parser.add_argument(
        "--outage", metavar="TIME", help="how long the fleet's assisted-service is out (default: 60s)"
    )
    parser.add_argument(
        "--rate",
        metavar="RATE",
        help="of each client: requests a second (20/s), or of a download or a fleet bytes a second (10KiB/s)",
    )
    parser.add_argument(
        "--timeout",
        default="10s",
        metavar="TIME",
        help="without progress an answer is given up (default: 10s)",
    )
    parser.add_argument(
        "--check",
        default="1",
        metavar="N",
        help="images to read whole in the end, against .sha256 (default: 1)",
    )
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="OBJECTIVE",
        help="an objective to meet, such as p99<200ms, first-byte.max<=3s, errors<0.1%%, throughput>1GB/s;"
        " repeatable",
    )
    parser.add_argument("--report", metavar="DIR", help="write report.json and report.html there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run a load test; return the exit status."""
    # Imported late: other commands do not need this package, nor the extra.
    try:
        from image_service.tools.loadtest.command import run_command  # noqa: PLC0415
        from image_service.tools.loadtest.fleet.command import run_fleet  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"loadtest needs the module {error.name}: install the wheel with its extra loadtest"
        ) from None
    from twisted.internet import reactor  # noqa: PLC0415, TID251 - an entry point

    exit_on_signals()
    if options.profile == _FLEET:
        return run_fleet(options, sample_iso(), SAMPLE_OPENSHIFT_VERSION, reactor, __version__)
    return run_command(options, os.environ.get("STANDALONE_TOKEN"), reactor, __version__)
