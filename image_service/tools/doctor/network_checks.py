"""Checks of the host's name and of connections to it."""

from __future__ import annotations

import socket
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING

from image_service.tools.doctor.outcomes import failed, passed, warned
from image_service.tools.doctor.rules import BMCS, ClientProfile
from image_service.tools.doctor.web_client import SILENCE_SECONDS, describe_network_error

if TYPE_CHECKING:
    from collections.abc import Generator

    from image_service.tools.doctor.outcomes import CheckOutcome
    from image_service.tools.doctor.target import ImageUrl

NETWORK_CHECKS = ("dns", "tcp")

_MAX_ADDRESSES = 4  # of those a name has that are tried
_NAMES_SOURCE = "jetlag #286 and #641: BMCs without DNS"


def check_network(url: ImageUrl, profile: ClientProfile | None) -> Generator[CheckOutcome, None, bool]:
    """Yield the outcomes of `NETWORK_CHECKS`; return True if there is a server."""
    try:
        found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        detail = f"{url.host} does not resolve: {describe_network_error(error)}"
        yield failed("dns", detail, "correct the name, add it to DNS, or use an IP address")
        return False
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    yield _check_name(url, addresses, profile)
    tried = addresses[:_MAX_ADDRESSES]
    outcomes = {address: _connect(address, url.port) for address in tried}
    faults = {address: fault for address, fault in outcomes.items() if isinstance(fault, str)}
    text = "; ".join(f"{address} port {url.port}: {fault}" for address, fault in faults.items())
    remedy = "start the server, correct the port, or open the firewall"
    if len(faults) == len(tried):
        yield failed("tcp", text, remedy)
        return False
    if faults:
        yield warned("tcp", text, f"{remedy}; a machine may try this address only")
        return True
    slowest = max(seconds for seconds in outcomes.values() if isinstance(seconds, float))
    detail = f"{', '.join(tried)} port {url.port} accepts connections within {slowest * 1000:.0f} ms"
    yield passed("tcp", detail)
    return True


def _check_name(url: ImageUrl, addresses: list[str], profile: ClientProfile | None) -> CheckOutcome:
    if all(ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        detail = f"{url.host} is this machine's loopback address"
        return warned("dns", detail, "use an address that the other machine reaches")
    if url.is_address:
        return passed("dns", "the host is an IP address: no DNS is needed")
    detail = f"{url.host} resolves to {', '.join(addresses)} here"
    if profile is None or profile in BMCS:
        remedy = "check that the machine has DNS, or use an IP address"
        return warned("dns", f"{detail} ({_NAMES_SOURCE})", remedy)
    return passed("dns", detail)


def _connect(address: str, port: int) -> float | str:
    """Return the seconds that a connection took, or why there is none."""
    begun_at = time.monotonic()
    try:
        with socket.create_connection((address, port), SILENCE_SECONDS):
            return time.monotonic() - begun_at
    except OSError as error:
        return describe_network_error(error)
