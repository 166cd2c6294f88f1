"""Rules on a URL and its server: the judgement of each client about a violation, and the source.

A client about which nothing is known is never judged: the check is skipped. BMCs without a statement of their
own get the general judgement, whose sources are lists of several vendors.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import TYPE_CHECKING

import attrs

from image_service.tools.doctor.outcomes import CheckOutcome, CheckStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

_OK, _WARN, _FAIL, _SKIP = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.SKIP


class ClientProfile(StrEnum):
    """The clients that ``--profile`` names, each with limits of its own."""

    IDRAC = "idrac"
    ILO = "ilo"
    SUPERMICRO = "supermicro"
    OPENBMC = "openbmc"
    UEFI_HTTP = "uefi-http"
    IPXE = "ipxe"
    QEMU = "qemu"
    IRONIC = "ironic"


BMCS = frozenset({ClientProfile.IDRAC, ClientProfile.ILO, ClientProfile.SUPERMICRO, ClientProfile.OPENBMC})


class Rule(StrEnum):
    """The rules that not all clients have."""

    URL_LENGTH = auto()
    QUERY = auto()
    EQUALS_SIGN = auto()
    COMMA = auto()
    OTHER_CHARACTERS = auto()
    DIRECTORY = auto()
    SUFFIX = auto()
    PLAIN_HTTP = auto()
    HTTPS = auto()
    UNTRUSTED = auto()
    WILDCARD = auto()
    ECDSA = auto()
    REDIRECT = auto()
    HEAD = auto()
    CONTENT_LENGTH = auto()
    ACCEPT_RANGES = auto()
    STRONG_ETAG = auto()
    FIRST_BYTE = auto()
    RATE = auto()
    RANGES = auto()
    PAST_END = auto()


@attrs.frozen
class Judgement:
    """The judgement about a violation of a rule. OK: this client accepts it; SKIP: not known."""

    status: CheckStatus
    source: str


SLOWEST_RATE = 125_000
"""Bytes a second, 1 Mbit/s, at which BMCs are known to read: see `Rule.RATE`."""

_VENDORS = "assisted-service, short-URL enhancement: a vendor's list"
_MEASURED_QEMU = "measured with qemu's block driver"
_MEASURED_OVMF = "measured with OVMF 2022.11"
_MEASURED_IPXE = "measured with iPXE's sanboot"
_MEASURED_IRONIC = "measured with Ironic 39.0"
_MEASURED_NBDKIT = "measured with nbdkit's curl plugin, which OpenBMC ships"
_SUPERMICRO_NOTE = "Ironic's release note on Supermicro X12"
_WHOLE = "it reads whole files"

_GENERAL: Mapping[Rule, Judgement] = {
    Rule.URL_LENGTH: Judgement(_WARN, _VENDORS),
    Rule.QUERY: Judgement(_WARN, _VENDORS),
    Rule.EQUALS_SIGN: Judgement(_WARN, _SUPERMICRO_NOTE),
    Rule.COMMA: Judgement(_WARN, "HPE iLO 4 and 5 user guides: a comma begins a script's name"),
    Rule.OTHER_CHARACTERS: Judgement(_WARN, "Redfish BMCs: %, + and ~ are better avoided"),
    Rule.DIRECTORY: Judgement(_WARN, "jetlag #68: older Supermicro BMCs take host and path apart"),
    Rule.SUFFIX: Judgement(_WARN, _VENDORS),
    Rule.PLAIN_HTTP: Judgement(_OK, "BMCs and firmware mostly take http"),
    Rule.HTTPS: Judgement(_OK, "BMCs mostly take https"),
    Rule.UNTRUSTED: Judgement(
        _WARN, "many Redfish BMCs do not verify by default (sushy-tools); other clients do"
    ),
    Rule.WILDCARD: Judgement(_WARN, "EDK2 before commit 4cca792399 refuses wildcard certificates"),
    Rule.ECDSA: Judgement(_WARN, "image-factory commit 7254abf: iPXE before 2.0 has no ECDSA"),
    Rule.REDIRECT: Judgement(_FAIL, f"fatal to UEFI HTTP Boot, {_MEASURED_OVMF}; none for BMCs: {_VENDORS}"),
    Rule.HEAD: Judgement(_FAIL, f"fatal: {_MEASURED_QEMU}, OVMF and Ironic"),
    Rule.CONTENT_LENGTH: Judgement(_FAIL, f"fatal: {_MEASURED_QEMU} and Ironic"),
    Rule.ACCEPT_RANGES: Judgement(_FAIL, f"fatal: {_MEASURED_QEMU}"),
    Rule.STRONG_ETAG: Judgement(_WARN, "EDK2 from 2024-08 resumes with a strong ETag only (b3efbda166)"),
    Rule.FIRST_BYTE: Judgement(_FAIL, f"time-out of 5 s: {_MEASURED_QEMU} and OVMF"),
    Rule.RATE: Judgement(_WARN, "harvester #2651: BMCs read for hours at 1 to 2 Mbit/s"),
    Rule.RANGES: Judgement(_FAIL, "eks-anywhere #10484: without 206 a BMC does not boot"),
    Rule.PAST_END: Judgement(_FAIL, _MEASURED_NBDKIT),
}

_OF_PROFILES: Mapping[ClientProfile, Mapping[Rule, Judgement]] = {
    ClientProfile.IDRAC: {
        Rule.SUFFIX: Judgement(_FAIL, "terraform-provider-redfish #84: .iso for CD, .img for removable disk"),
    },
    ClientProfile.ILO: {
        Rule.COMMA: Judgement(_FAIL, "HPE iLO 4 and 5 user guides: a comma begins a script's name"),
    },
    ClientProfile.SUPERMICRO: {
        Rule.QUERY: Judgement(_FAIL, _SUPERMICRO_NOTE),
        Rule.EQUALS_SIGN: Judgement(_FAIL, _SUPERMICRO_NOTE),
        Rule.DIRECTORY: Judgement(_FAIL, "jetlag #68: older ones take host and path apart"),
        Rule.UNTRUSTED: Judgement(
            _WARN, "suse-edge #220: a CA of one's own is 'not possible at all with some'"
        ),
    },
    ClientProfile.OPENBMC: {
        Rule.PLAIN_HTTP: Judgement(_WARN, "openbmc #3991: some builds take https only"),
    },
    ClientProfile.UEFI_HTTP: {
        Rule.QUERY: Judgement(_OK, _MEASURED_OVMF),
        Rule.EQUALS_SIGN: Judgement(_OK, _MEASURED_OVMF),
        Rule.DIRECTORY: Judgement(_OK, _MEASURED_OVMF),
        Rule.SUFFIX: Judgement(
            _FAIL,
            f"{_MEASURED_OVMF}; EDK2's HttpBootSupport.c: the type comes from Content-Type, else from .iso",
        ),
        Rule.PLAIN_HTTP: Judgement(_WARN, "EDK2: PcdAllowHttpConnections is FALSE by default"),
        Rule.HTTPS: Judgement(_OK, "EDK2"),
        Rule.WILDCARD: Judgement(_WARN, "EDK2 before commit 4cca792399 refuses wildcard certificates"),
        Rule.REDIRECT: Judgement(_FAIL, _MEASURED_OVMF),
        Rule.HEAD: Judgement(_FAIL, f"405: {_MEASURED_OVMF}"),
        Rule.CONTENT_LENGTH: Judgement(_OK, _MEASURED_OVMF),
        Rule.ACCEPT_RANGES: Judgement(_OK, _WHOLE),
        Rule.STRONG_ETAG: Judgement(_WARN, "EDK2 from 2024-08 resumes with a strong ETag only (b3efbda166)"),
        Rule.FIRST_BYTE: Judgement(_FAIL, f"8 s are fatal: {_MEASURED_OVMF}"),
        Rule.RANGES: Judgement(_WARN, "EDK2 from 2024-08 resumes by ranges (69139e39bc)"),
        Rule.PAST_END: Judgement(_OK, _WHOLE),
    },
    ClientProfile.IPXE: {
        Rule.QUERY: Judgement(_OK, _MEASURED_IPXE),
        Rule.SUFFIX: Judgement(_OK, _MEASURED_IPXE),
        Rule.DIRECTORY: Judgement(_OK, _MEASURED_IPXE),
        Rule.PLAIN_HTTP: Judgement(_OK, _MEASURED_IPXE),
        Rule.HTTPS: Judgement(_WARN, "assisted-service PR #3705: iPXE in the field commonly has http only"),
        Rule.ECDSA: Judgement(
            _WARN,
            "iPXE before 2.0 has no ECDSA (image-factory commit 7254abf), 2.0 has it (ipxe #1179)",
        ),
        Rule.HEAD: Judgement(_FAIL, "iPXE's httpblock.c: the capacity comes from HEAD"),
        Rule.CONTENT_LENGTH: Judgement(_FAIL, "iPXE's httpblock.c: the capacity comes from HEAD"),
        Rule.ACCEPT_RANGES: Judgement(_OK, "iPXE's httpblock.c does not look at it"),
        Rule.RANGES: Judgement(_FAIL, _MEASURED_IPXE),
        Rule.PAST_END: Judgement(_OK, f"it does not ask for it: {_MEASURED_IPXE}"),
    },
    ClientProfile.QEMU: {
        Rule.URL_LENGTH: Judgement(_OK, _MEASURED_QEMU),
        Rule.QUERY: Judgement(_OK, _MEASURED_QEMU),
        Rule.EQUALS_SIGN: Judgement(_OK, _MEASURED_QEMU),
        Rule.SUFFIX: Judgement(_OK, _MEASURED_QEMU),
        Rule.DIRECTORY: Judgement(_OK, _MEASURED_QEMU),
        Rule.PLAIN_HTTP: Judgement(_OK, _MEASURED_QEMU),
        Rule.HTTPS: Judgement(_OK, "qemu's block/curl.c"),
        Rule.REDIRECT: Judgement(_OK, f"it follows: {_MEASURED_QEMU}"),
        Rule.HEAD: Judgement(_FAIL, _MEASURED_QEMU),
        Rule.CONTENT_LENGTH: Judgement(_FAIL, _MEASURED_QEMU),
        Rule.ACCEPT_RANGES: Judgement(_FAIL, _MEASURED_QEMU),
        Rule.FIRST_BYTE: Judgement(_FAIL, f"5 s for a request: {_MEASURED_QEMU}"),
        Rule.RATE: Judgement(_FAIL, f"256 KiB within 5 s: {_MEASURED_QEMU}"),
        Rule.RANGES: Judgement(_FAIL, _MEASURED_QEMU),
        Rule.PAST_END: Judgement(_OK, f"it does not ask for it: {_MEASURED_QEMU}"),
    },
    ClientProfile.IRONIC: {
        Rule.SUFFIX: Judgement(_OK, "Ironic adds .iso for BMCs (release note add-iso-suffix)"),
        Rule.PLAIN_HTTP: Judgement(_OK, _MEASURED_IRONIC),
        Rule.HTTPS: Judgement(_OK, "Ironic's image_service.py"),
        Rule.REDIRECT: Judgement(_OK, f"followed on HEAD: {_MEASURED_IRONIC}"),
        Rule.HEAD: Judgement(_FAIL, f"exactly 200: {_MEASURED_IRONIC}"),
        Rule.CONTENT_LENGTH: Judgement(_FAIL, _MEASURED_IRONIC),
        Rule.ACCEPT_RANGES: Judgement(_OK, _WHOLE),
        Rule.STRONG_ETAG: Judgement(_OK, "Ironic's image_service.py uses Last-Modified"),
        Rule.RANGES: Judgement(_OK, _WHOLE),
        Rule.PAST_END: Judgement(_OK, _WHOLE),
    },
}


def judge(rule: Rule, profile: ClientProfile | None) -> Judgement:
    """Return a client's judgement about a violation of a rule; None: that for any client."""
    if profile is None:
        return _GENERAL[rule]
    known = _OF_PROFILES[profile].get(rule)
    if known is None and profile in BMCS:
        return _GENERAL[rule]
    return known or Judgement(_SKIP, f"it is not known what {profile} does then")


def violation(name: str, rule: Rule, profile: ClientProfile | None, detail: str, remedy: str) -> CheckOutcome:
    """Return the outcome of a violated rule with its source; with the remedy unless the client accepts it."""
    judgement = judge(rule, profile)
    is_fault = judgement.status in {CheckStatus.WARN, CheckStatus.FAIL}
    return CheckOutcome(name, judgement.status, f"{detail} ({judgement.source})", remedy if is_fault else "")
