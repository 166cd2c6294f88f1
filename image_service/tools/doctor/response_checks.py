"""Checks of the responses to HEAD and to GET without a range."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import InvalidArguments, TransferFailed
from image_service.tools.doctor.outcomes import CheckOutcome, failed, passed, skipped, warned
from image_service.tools.doctor.ranges import total_of
from image_service.tools.doctor.rules import SLOWEST_RATE, ClientProfile, Rule, judge, violation
from image_service.tools.doctor.web_client import WebClient

if TYPE_CHECKING:
    from collections.abc import Generator

    from image_service.tools.doctor.target import ImageUrl
    from image_service.tools.doctor.web_client import WebReply

REDIRECT_CHECKS = ("redirects",)
RESPONSE_CHECKS = (
    "head",
    "content-length",
    "accept-ranges",
    "etag",
    "media-type",
    "content-coding",
    "head-and-get",
    "rate",
)
FIRST_BYTE_CHECKS = ("first-byte",)

_MAX_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_SAMPLE_BYTES = 8 * 1024 * 1024
_SAMPLE_SECONDS = 3.0
_BEGINNING_BYTES = 64 * 1024
# EDK2 compares the whole field with these, in any case, and the end of the path in lower case alone.
_EFI_TYPES = {"application/vnd.efi-iso", "application/vnd.efi-img", "application/efi"}
_EFI_SUFFIXES = (".iso", ".img", ".efi")
_COMPRESSING = {"Accept-Encoding": "gzip, deflate, br"}
_LATE_SECONDS, _TIMEOUT_SECONDS = 3.0, 5.0
_SLOWEST_QEMU_RATE = 256 * 1024 / _TIMEOUT_SECONDS
_MAX_VALUE = 80  # characters of a field value that are shown
_REMEDIES = {
    401: "give the URL a credential",
    403: "give the URL a credential that may read the image, or one that has not expired",
    404: "correct the URL: make it again where it came from",
    410: "the link has expired or was revoked: make another one",
    429: "wait, and try again",
    502: "look into the server's log: the server behind it has failed",
    503: "wait until the image is ready, and try again",
    504: "look into the server's log: the server behind it is too slow",
}


@attrs.frozen
class ServedFile:
    """The facts of the responses about the file behind a URL.

    Args:
        size: bytes; None: the server does not say.
        validators: ETag and Last-Modified.
        beginning: its first bytes, at most 64 KiB.
    """

    client: WebClient
    size: int | None
    validators: tuple[str | None, str | None]
    beginning: bytes = attrs.field(repr=False)


def follow_redirects(
    url: ImageUrl, profile: ClientProfile | None
) -> Generator[CheckOutcome, None, ImageUrl | None]:
    """Yield the outcome of `REDIRECT_CHECKS`; return the URL behind all redirects, None if there is none."""
    (name,) = REDIRECT_CHECKS
    statuses: list[int] = []
    final = url
    while len(statuses) <= _MAX_REDIRECTS:
        try:
            with WebClient(final) as client:
                reply = client.request("HEAD")
                if reply.status not in _REDIRECTS | {HTTPStatus.OK}:  # some servers refuse HEAD alone
                    reply = client.request("GET", limit=1)
            if reply.status not in _REDIRECTS:
                break
            statuses.append(reply.status)
            final = final.follow(reply.fields.get("location", ""))
        except (TransferFailed, InvalidArguments) as error:
            yield failed(name, f"{final.shown}: {error.detail}", "look into the server's log")
            return None
    else:
        yield failed(name, f"more than {_MAX_REDIRECTS} redirects", "remove the redirects")
        return None
    if not statuses:
        yield passed(name, "none")
        return url
    detail = f"{', '.join(map(str, statuses))} to {final.shown}; the other checks are about that URL"
    yield violation(name, Rule.REDIRECT, profile, detail, "use the URL behind the redirect")
    return final


def check_responses(
    client: WebClient, profile: ClientProfile | None
) -> Generator[CheckOutcome, None, ServedFile | None]:
    """Yield the outcomes of `RESPONSE_CHECKS`; return the file, None if GET does not serve it."""
    name = "head"
    try:
        head = client.request("HEAD")
        yield _check_head(head, profile)
        name = "head-and-get"
        get = client.request("GET", _COMPRESSING, limit=_SAMPLE_BYTES, limit_seconds=_SAMPLE_SECONDS)
    except TransferFailed as error:
        yield failed(name, error.detail, "look into the server's log")
        return None
    if get.status != HTTPStatus.OK:
        detail = f"GET is answered with {get.status}"
        yield failed("head-and-get", detail, _REMEDIES.get(get.status, "look into the server's log"))
        return None
    fields = head if head.status == HTTPStatus.OK else get
    yield _check_content_length(fields, profile)
    yield _check_accept_ranges(fields, profile)
    yield _check_etag(fields, profile)
    yield _check_media_type(fields, client.url, profile)
    coding = get.fields.get("content-encoding", "identity")
    if coding == "identity":
        yield passed("content-coding", "none")
    else:
        remedy = "send images as they are, whatever Accept-Encoding says"
        yield failed("content-coding", f"{_show(coding)}: sizes and ranges are of other bytes", remedy)
    if head.status == HTTPStatus.OK:
        yield _compare(head, get)
    else:
        yield skipped("head-and-get", f"HEAD is answered with {head.status}")
    size = _find_size(client, fields)
    yield judge_rate(get.length, get.seconds - get.first_byte_seconds, size, profile)
    return ServedFile(client, size, fields.validators, get.body[:_BEGINNING_BYTES])


def _check_head(head: WebReply, profile: ClientProfile | None) -> CheckOutcome:
    if head.status == HTTPStatus.OK:
        return passed("head", "200")
    remedy = _REMEDIES.get(head.status, "let the server answer HEAD as it answers GET")
    return violation("head", Rule.HEAD, profile, f"HEAD is answered with {head.status}", remedy)


def _check_content_length(reply: WebReply, profile: ClientProfile | None) -> CheckOutcome:
    if reply.content_length is not None:
        return passed("content-length", f"{reply.content_length} bytes")
    remedy = "let the server send Content-Length; a chunked response has none"
    return violation("content-length", Rule.CONTENT_LENGTH, profile, "no Content-Length", remedy)


def _check_accept_ranges(reply: WebReply, profile: ClientProfile | None) -> CheckOutcome:
    name, rule, remedy = "accept-ranges", Rule.ACCEPT_RANGES, "let the server send Accept-Ranges: bytes"
    value = reply.fields.get("accept-ranges")
    if value != "bytes":
        detail = "no Accept-Ranges" if value is None else f"Accept-Ranges: {_show(value)}"
        return violation(name, rule, profile, detail, remedy)
    if "Accept-Ranges" in reply.names or profile not in {None, ClientProfile.QEMU}:
        return passed(name, "bytes")
    source = "older qemu compares it with exactly Accept-Ranges: bytes (block/curl.c)"
    return warned(name, f"the field's name is not in the usual case ({source})", remedy)


def _check_etag(reply: WebReply, profile: ClientProfile | None) -> CheckOutcome:
    etag = reply.fields.get("etag")
    if etag is not None and etag.startswith('"'):
        return passed("etag", _show(etag))
    detail = "no ETag" if etag is None else f"not a strong one: {_show(etag)}"
    return violation("etag", Rule.STRONG_ETAG, profile, detail, "let the server send a strong ETag")


def _check_media_type(reply: WebReply, url: ImageUrl, profile: ClientProfile | None) -> CheckOutcome:
    name = "media-type"
    media_type = reply.fields.get("content-type", "").strip()
    detail = _show(media_type) or "no Content-Type"
    if media_type.lower() in _EFI_TYPES or url.path.endswith(_EFI_SUFFIXES):
        return passed(name, detail)
    if profile not in {None, ClientProfile.UEFI_HTTP}:
        return skipped(name, f"{detail}; only UEFI HTTP Boot is known to look at it")
    judgement = judge(Rule.SUFFIX, ClientProfile.UEFI_HTTP)
    status = judgement.status if profile else judge(Rule.SUFFIX, None).status
    remedy = "let the path end in .iso, or send Content-Type: application/vnd.efi-iso"
    return CheckOutcome(name, status, f"{detail} ({judgement.source})", remedy)


def _compare(head: WebReply, get: WebReply) -> CheckOutcome:
    name = "head-and-get"
    fields = ("content-length", "etag", "last-modified", "content-type")
    different = [field for field in fields if head.fields.get(field) != get.fields.get(field)]
    if different:
        detail = f"they differ in {', '.join(different)}"
        return failed(name, detail, "let the server answer HEAD with the fields of GET (RFC 9110 9.3.2)")
    return passed(name, f"equal {', '.join(fields)}")


def judge_first_byte(seconds: float, profile: ClientProfile | None) -> CheckOutcome:
    """Return the outcome for the seconds to the first byte of the slowest response."""
    name, remedy = FIRST_BYTE_CHECKS[0], "make the server or the way to it faster"
    detail = f"after {seconds:.3f} s at most"
    if seconds > _TIMEOUT_SECONDS:
        return violation(name, Rule.FIRST_BYTE, profile, detail, remedy)
    if seconds > _LATE_SECONDS:
        source = judge(Rule.FIRST_BYTE, None).source
        return warned(name, f"{detail}, close to the time-out of firmware ({source})", remedy)
    return passed(name, detail)


def judge_rate(length: int, seconds: float, size: int | None, profile: ClientProfile | None) -> CheckOutcome:
    """Return the outcome for `length` bytes of content that took `seconds`."""
    name = "rate"
    if seconds <= 0 or not length:
        return skipped(name, f"{length} bytes are too few to measure a rate")
    rate = length / seconds
    detail = f"{rate * 8 / 1e6:.1f} Mbit/s, from {length} bytes"
    if size is not None:
        detail += f"; the whole file takes {size / rate:.0f} s"
    lowest = _SLOWEST_QEMU_RATE if profile is ClientProfile.QEMU else SLOWEST_RATE
    if rate < lowest:
        remedy = "make the way to the server faster, or use a minimal ISO"
        return violation(name, Rule.RATE, profile, detail, remedy)
    return passed(name, detail)


def _find_size(client: WebClient, reply: WebReply) -> int | None:
    if reply.content_length is not None:
        return reply.content_length
    try:
        return total_of(client.request("GET", {"Range": "bytes=0-0"}))
    except TransferFailed:
        return None


def _show(value: str) -> str:
    return value if len(value) <= _MAX_VALUE else f"{value[:_MAX_VALUE]}…"
