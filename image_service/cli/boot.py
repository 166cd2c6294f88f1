"""``image-service boot``: boots machines from a URL by their BMCs' Redfish services."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shutil
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from image_service.cli.shared.admin import admin_client
from image_service.cli.shared.command import add_admin_arguments
from image_service.cli.shared.input import STANDARD_INPUT
from image_service.common.command_line.messages import tell
from image_service.common.command_line.parser import EXIT_FAILURE, exit_on_signals, printable
from image_service.core.errors import ConfigurationError, ImageServiceError, Unavailable
from image_service.server.boot_progress.stages import ReadState
from image_service.tools.doctor.outcomes import CheckStatus, render_outcome
from image_service.tools.doctor.target import ImageUrl
from image_service.tools.redfish.bmc_list import BmcAddress, parse_bmc_url, read_bmcs, read_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from image_service.common.command_line.parser import AddParser
    from image_service.server.admin.client import AdminClient
    from image_service.tools.doctor.rules import ClientProfile
    from image_service.tools.redfish.machine import BmcLogin, Machine

USER, PASSWORD = "REDFISH_USERNAME", "REDFISH_PASSWORD"
AT_ONCE = 8  # BMCs
_POLL_SECONDS = 2.0
_EXAMPLES = """\
examples:
  image-service boot http://192.0.2.1:8080/s/0123456789abcdef.iso --redfish https://bmc1.example.com
  image-service boot - --bmcs rack7.txt --credentials admin.txt --yes --follow <url
  image-service boot --eject --redfish https://bmc1.example.com
"""


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "boot",
        help="boot machines from a URL by Redfish",
        description="Insert an image as virtual CD of machines, let them boot from it once, and reset them."
        " The doctor looks at the URL first. User and password are those of --credentials, or of"
        f" {USER} and {PASSWORD}; else the command asks for them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, refuse=parser.error)
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="of the image; - is standard input, hidden from ps"
    )
    parser.add_argument(
        "--redfish",
        metavar="BMC",
        type=_parse_bmc,
        action="append",
        default=[],
        help="URL of a BMC's Redfish service, such as https://bmc.example.com; repeatable",
    )
    parser.add_argument("--system", metavar="ID", help="of the system, if the BMC has several")
    parser.add_argument(
        "--bmcs", metavar="FILE", type=Path, help="more of them: lines of URL [SYSTEM [CREDENTIALS-FILE]]"
    )
    parser.add_argument(
        "--credentials", metavar="FILE", type=Path, help="one line USER:PASSWORD, for all BMCs without a file"
    )
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument("--cacert", metavar="FILE", type=Path, help="PEM file that BMCs' certificates are of")
    trust.add_argument("--insecure", action="store_true", help="trust any certificate of a BMC")
    parser.add_argument("--replace", action="store_true", help="eject a medium that is inserted already")
    parser.add_argument("--eject", action="store_true", help="eject the medium, and do nothing else")
    reset = parser.add_mutually_exclusive_group()
    reset.add_argument("--yes", action="store_true", help="reset machines that run, without a question")
    reset.add_argument("--no-reset", action="store_true", help="leave the power as it is")
    parser.add_argument("--no-doctor", action="store_true", help="do not look at the URL first")
    parser.add_argument(
        "--follow", action="store_true", help="show the stages of the boots, until all have ended or ^C"
    )
    add_admin_arguments(parser)


def _parse_bmc(text: str) -> str:
    try:
        return parse_bmc_url(text)
    except ValueError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from None


def run(options: argparse.Namespace) -> int:
    """Boot the machines; return 1 if one could not be."""
    _check_usage(options)
    try:
        from image_service.tools.redfish.machine import Machine  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"boot needs the module {error.name}: install the wheel with its extra redfish"
        ) from None
    exit_on_signals()
    url = None if options.eject else _read_url(options)
    logins = _logins(options)
    machines, failed = _each(logins, Machine.find, lambda machine: f"{machine.model}, power {machine.power}")
    if url is None:
        _, more = _each(machines, Machine.eject, _tell_ejected)
    else:
        more = _boot(machines, url, options) if machines else 0
    return EXIT_FAILURE if failed or more else 0


def _tell_ejected(device: str | None) -> str:
    return f"ejected from {device}" if device else "no medium is inserted"


def _boot(machines: Sequence[Machine], url: ImageUrl, options: argparse.Namespace) -> int:
    """Boot machines from a URL; return how many failed."""
    if not options.no_doctor:
        _ask_doctor(url, {machine.profile for machine in machines}, options.ca_file)
    resets = not options.no_reset and _may_reset(machines, options)

    def boot(machine: Machine) -> tuple[Machine, str]:
        device = machine.insert(url.text, replace=options.replace)
        if not resets:
            return machine, f"inserted in {device}; boots from it once"
        machine.restart()
        return machine, f"inserted in {device}; restarted to boot from it once"

    admin = admin_client(options) if options.follow and resets else None
    before = _mounts(admin) if admin else {}
    booting, failed = _each(machines, boot, lambda booted: booted[1])
    if admin and booting:
        _follow(admin, [machine for machine, _ in booting], before)
    return failed


def _check_usage(options: argparse.Namespace) -> None:
    if not (options.redfish or options.bmcs):
        options.refuse("name a BMC by --redfish, or a file of them by --bmcs")
    if options.eject == bool(options.url):
        options.refuse("give the URL of an image, or --eject without one")
    if options.system and (len(options.redfish) != 1 or options.bmcs):
        options.refuse("--system is for one --redfish; a file of --bmcs names systems in its lines")
    if not (options.eject or options.yes or options.no_reset or sys.stdin.isatty()):
        options.refuse("there is no terminal to ask before machines are reset: use --yes or --no-reset")


def _read_url(options: argparse.Namespace) -> ImageUrl:
    return ImageUrl.parse(sys.stdin.readline().strip() if options.url == STANDARD_INPUT else options.url)


def _logins(options: argparse.Namespace) -> list[BmcLogin]:
    from image_service.tools.redfish.machine import BmcLogin  # noqa: PLC0415 - needs the extra

    bmcs = [BmcAddress(url, options.system) for url in options.redfish]
    if options.bmcs:
        try:
            bmcs += read_bmcs(options.bmcs.read_text())
        except ConfigurationError as error:
            raise ConfigurationError(f"{options.bmcs}: {error.detail}") from None
    if not bmcs:
        raise ConfigurationError(f"{options.bmcs} names no BMC")
    common = None
    if not all(bmc.credentials for bmc in bmcs):
        common = _credentials(options.credentials)
    verify: bool | str = str(options.cacert) if options.cacert else not options.insecure
    logins = []
    for bmc in bmcs:
        found = read_credentials(Path(bmc.credentials)) if bmc.credentials else common
        user, password = found or ("", "")
        logins.append(BmcLogin(bmc.url, bmc.system, user, password, verify))
    return logins


def _credentials(path: Path | None) -> tuple[str, str]:
    if path:
        return read_credentials(path)
    user, password = os.environ.get(USER), os.environ.get(PASSWORD)
    if user and password is not None:
        return user, password
    if not sys.stdin.isatty():
        raise ConfigurationError(f"user and password are needed: --credentials, or {USER} and {PASSWORD}")
    user = user or input("User of the BMC: ")
    return user, getpass.getpass(f"Password of {user}: ")


class _Named(Protocol):
    @property
    def name(self) -> str:
        """The BMC in messages."""


_Bmc = TypeVar("_Bmc", bound=_Named)
_Done = TypeVar("_Done")


def _each(
    bmcs: Sequence[_Bmc], act: Callable[[_Bmc], _Done], render: Callable[[_Done], str]
) -> tuple[list[_Done], int]:
    """Do something at a few BMCs at a time, with a line for each; return the results, and how many failed."""
    done: list[_Done] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for bmc, future in [(bmc, pool.submit(act, bmc)) for bmc in bmcs]:
            try:
                result = future.result()
            except ImageServiceError as error:
                tell(f"{printable(bmc.name)}: {printable(error.detail)}")
            else:
                done.append(result)
                print(f"{printable(bmc.name)}: {printable(render(result))}", flush=True)  # noqa: T201 - the output
    return done, len(bmcs) - len(done)


def _ask_doctor(url: ImageUrl, profiles: Iterable[ClientProfile | None], ca_file: Path | None) -> None:
    """Refuse a URL that no BMC of a profile boots from, with the doctor's reasons."""
    from image_service.tools.doctor.examination import Examination  # noqa: PLC0415 - not for --eject

    width = shutil.get_terminal_size().columns
    for profile in sorted(set(profiles), key=str):
        outcomes = list(Examination(url=url, profile=profile, ca_file=ca_file).run())
        reasons = [outcome for outcome in outcomes if outcome.status is CheckStatus.FAIL]
        if reasons:
            tell("".join(render_outcome(outcome, width) for outcome in reasons).rstrip())
            raise Unavailable(
                "a machine will not boot from this URL, the doctor says; --no-doctor inserts it anyway"
            )


def _may_reset(machines: Sequence[Machine], options: argparse.Namespace) -> bool:
    """Ask before machines are reset that run."""
    running = [machine.name for machine in machines if machine.power != "off"]
    if options.yes or not running:
        return True
    answer = input(f"Reset {', '.join(running)}? What runs there is lost. [y/N] ")
    return answer.strip().lower() in {"y", "yes"}


def _mounts(admin: AdminClient) -> dict[str, dict[str, Any]]:
    """Return the mounts that a service lists, each by what tells it from others of its address."""
    mounts = json.loads(admin.get("/api/v1/mounts"))["mounts"]
    identity = ("infra_env", "version", "cpu_architecture", "kind", "since")
    return {" ".join(str(mount[name]) for name in ("address", *identity)): mount for mount in mounts}


def _follow(admin: AdminClient, machines: Sequence[Machine], before: Collection[str]) -> None:
    """Print the stage of each boot as it changes, until no machine reads any more.

    Args:
        before: mounts that were listed before the machines began.
    """
    names = {
        info[4][0]: machine.name
        for machine in machines
        for info in socket.getaddrinfo(urlsplit(machine.login.url).hostname, None)
    }
    shown: dict[str, str] = {}
    ended: set[str] = set()
    while ended != set(names.values()):
        time.sleep(_POLL_SECONDS)
        for identity, mount in _mounts(admin).items():
            name = names.get(mount["address"])
            if name is None or identity in before:
                continue
            stage = mount["stage"] or f"{mount['rootfs_percent'] or 0:.0f} % read"
            is_reading = mount["state"] == ReadState.READING.value
            is_plain = is_reading or mount["state"] == ReadState.DONE.value
            text = stage if is_plain else f"{stage}, {mount['state']}"
            if shown.get(name) != text:
                shown[name] = text
                print(f"{printable(name)}: {printable(text)}", flush=True)  # noqa: T201 - the output
            if not is_reading:
                ended.add(name)
