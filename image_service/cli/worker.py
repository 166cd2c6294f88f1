"""``image-service worker``: takes jobs of the jobs role, on this machine or another."""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.command_line.messages import tell
from image_service.common.command_line.values import parse_bytes, parse_seconds
from image_service.core.errors import ConfigurationError
from image_service.core.families.coreos.build_names import rpm_architecture
from image_service.jobs.worker.calls import KINDS
from image_service.jobs.worker.command import WorkerOptions, run_worker
from image_service.jobs.worker.requests import ServerAddress

if TYPE_CHECKING:
    from image_service.common.command_line.parser import AddParser

_BEAT_SECONDS = 15.0
_CACHE_BYTES = "20G"
_MOST_SLOTS = 1000
_EXAMPLES = """\
examples:
  image-service worker --server unix:/var/lib/image-service/jobs.sock
  image-service worker --server https://jobs.example --token-file worker.token --slots 2 \\
      --cache-dir /var/cache/images

TOOLKIT names the image-toolkit to run (default: the one beside this program). AWS_* variables let the worker
take jobs of type upload. BUNDLE_KEY_FILE names the RSA key that decrypts image bundles.
"""


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "worker",
        help="take jobs: import, customize, convert and upload disk images",
        description="Take jobs from the worker API of image-service jobs, and run image-toolkit for them."
        " SIGTERM ends the worker at once, SIGQUIT after its present jobs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--server", required=True, type=_parse_server, metavar="URL", help="http://, https:// or unix:PATH"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file of a bearer token, which is read again for each request",
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="PEM file of certificate authorities to trust too"
    )
    parser.add_argument(
        "--tenant", choices=("ANY",), help="take jobs of all tenants; only for an operator's token"
    )
    parser.add_argument(
        "--types",
        type=_parse_types,
        metavar="TYPE,…",
        help=f"of jobs: {', '.join(KINDS)} (default: all, but upload only with AWS_* credentials)",
    )
    parser.add_argument(
        "--arch",
        default=platform.machine(),
        type=rpm_architecture,
        metavar="ARCH",
        help="of the images: x86_64, aarch64, … (default: this machine's)",
    )
    parser.add_argument(
        "--slots", type=_parse_slots, default=1, metavar="N", help="jobs at a time (default: 1)"
    )
    parser.add_argument(
        "--scratch-dir",
        type=Path,
        metavar="DIR",
        help="for temporary files of jobs; created if it does not exist (default: TMPDIR, /tmp)",
    )
    parser.add_argument(
        "--scratch-bytes",
        type=parse_bytes,
        metavar="N",
        help="limit of all jobs together there (default: the free space at the start)",
    )
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="cache base images there; workers may share it (default: no cache)",
    )
    parser.add_argument(
        "--cache-bytes",
        type=parse_bytes,
        default=_CACHE_BYTES,
        metavar="N",
        help=f"limit of the cache (default: {_CACHE_BYTES})",
    )
    parser.add_argument(
        "--heartbeat",
        type=parse_seconds,
        default=_BEAT_SECONDS,
        metavar="SECONDS",
        help="between two heartbeats of a job, a third of the server's JOBS_HEARTBEAT_TIMEOUT at most"
        f" (default: {_BEAT_SECONDS:g})",
    )
    parser.add_argument(
        "--require-isolation",
        action="store_true",
        help="do not start where neither bwrap nor unshare isolates the toolkit's programs",
    )
    parser.add_argument("--once", action="store_true", help="end after one job; for a container per job")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run a worker; return 78 if it cannot start."""
    try:
        return run_worker(
            WorkerOptions(
                server=options.server,
                token_file=options.token_file,
                ca_file=options.ca_file,
                tenant=options.tenant,
                types=options.types,
                architecture=options.arch,
                slots=1 if options.once else options.slots,
                scratch=options.scratch_dir,
                scratch_bytes=options.scratch_bytes,
                cache=options.cache_dir,
                cache_bytes=options.cache_bytes,
                beat_seconds=options.heartbeat,
                only_one=options.once,
                requires_isolation=options.require_isolation,
            ),
            os.environ,
        )
    except ConfigurationError as error:
        tell(f"image-service worker: {error.detail}")
        return os.EX_CONFIG


def _parse_server(text: str) -> ServerAddress:
    try:
        return ServerAddress.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_types(text: str) -> tuple[str, ...]:
    types = tuple(dict.fromkeys(text.split(",")))
    if unknown := [each for each in types if each not in KINDS]:
        raise argparse.ArgumentTypeError(f"each must be one of {', '.join(KINDS)}, not {unknown[0]}")
    return types


def _parse_slots(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= _MOST_SLOTS:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {_MOST_SLOTS}")
    return int(text)
