"""``image-toolkit validate``: whether a disk image fits a platform."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.common.command_line.values import parse_seconds
from image_service.common.programs.dependencies import require
from image_service.core.errors import Unprocessable, UnsafeImage
from image_service.toolkit.commands.arguments import add_common_arguments, add_input_format, open_workspace
from image_service.toolkit.validation.boot import ACCELERATORS, DEFAULT_PATTERN, FIRMWARES, BootTrial
from image_service.toolkit.validation.platforms import PLATFORMS
from image_service.toolkit.validation.validate import validate
from image_service.toolkit.validation.verdicts import Verdict
from image_service.toolkit.workspace.dependencies import DEPENDENCIES_OF_VERBS

if TYPE_CHECKING:
    from image_service.common.command_line.parser import AddParser
    from image_service.toolkit.commands.report import CallReport
    from image_service.toolkit.validation.validate import Validation

_BOOT_SECONDS = 300.0
_ORDER = (Verdict.FAIL, Verdict.OK, Verdict.SKIP)
_EXAMPLES = """\
examples:
  image-toolkit validate rhcos-aws.vmdk --for ec2
  image-toolkit validate rhcos-metal.raw --for baremetal --boot --firmware uefi --json
"""


def add(add_parser: AddParser) -> None:
    """Declare the verb."""
    parser = add_parser(
        "validate",
        help="check whether a disk image fits a platform",
        description="Check whether a disk image fits a platform. Each check says ok, fail or skip, with the\n"
        "reason; the exit status is 6 if one fails. What cannot be read without a mount is skipped.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the disk image, or a block device")
    parser.add_argument("--for", dest="platform", choices=PLATFORMS, required=True, help="the platform")
    add_input_format(parser)
    parser.add_argument("--boot", action="store_true", help="boot the disk in qemu, too; x86_64 only")
    parser.add_argument(
        "--boot-pattern",
        type=_parse_pattern,
        default=DEFAULT_PATTERN,
        metavar="RE",
        help="regular expression that the serial console must show (default: a login prompt, systemd's"
        " Multi-User target, or Ignition's message)",
    )
    parser.add_argument(
        "--boot-seconds",
        type=parse_seconds,
        default=_BOOT_SECONDS,
        metavar="N",
        help=f"until the machine is ended (default: {_BOOT_SECONDS:g})",
    )
    parser.add_argument(
        "--boot-accel",
        choices=ACCELERATORS,
        default=ACCELERATORS[0],
        help="tcg: emulation; kvm: the machine's hardware, which is faster (default: tcg)",
    )
    parser.add_argument(
        "--firmware", choices=FIRMWARES, help="to boot with (default: BIOS if the disk has a loader for it)"
    )
    parser.add_argument("--no-digest", action="store_false", dest="digest", help="compute no SHA-256 of FILE")
    add_common_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, report: CallReport) -> int:
    """Validate an image; UnsafeImage or Unprocessable, after the verdicts, if a check failed."""
    require(DEPENDENCIES_OF_VERBS["validate"])
    trial = None
    if options.boot:
        trial = BootTrial(options.boot_pattern, options.boot_seconds, options.firmware, options.boot_accel)
        trial.require_programs()
    platform = PLATFORMS[options.platform]
    with open_workspace(options) as workspace:
        found = validate(
            options.file,
            platform,
            workspace,
            declared=options.input_format,
            trial=trial,
            digest=options.digest,
        )
    report.input = {
        "format": found.format,
        "size": found.size,
        "virtual_size": found.virtual_size,
        "sha256": found.sha256,
    }
    counts = {verdict.value: found.count(verdict) for verdict in Verdict}
    report.fields = {
        "platform": platform.name,
        "checks": [attrs.asdict(check) | {"verdict": check.verdict.value} for check in found.checks],
        "counts": counts,
        "console": found.console,
    }
    report.text = _render(found, counts)
    failed = [check for check in found.checks if check.verdict is Verdict.FAIL]
    if failed and found.format is None:
        raise UnsafeImage(failed[0].reason)
    if failed:
        names = ", ".join(check.name for check in failed)
        raise Unprocessable(f"{options.file} does not fit {platform.name}: {names}")
    return 0


def _render(found: Validation, counts: dict[str, int]) -> str:
    """Return a table, failures first, and the end of the console."""
    width = max(len(check.name) for check in found.checks)
    lines = [
        f"{verdict.value:4}  {check.name:{width}}  {check.reason}"
        for verdict in _ORDER
        for check in found.checks
        if check.verdict is verdict
    ]
    lines.append(", ".join(f"{counts[verdict.value]} {verdict.value}" for verdict in _ORDER))
    if found.console:
        lines += ["", "The end of the console:", *(f"    {line}" for line in found.console)]
    return "\n".join(lines)


def _parse_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.MULTILINE)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text} is not a regular expression: {error}") from None
