"""The checks, against servers with one mistake each: the checks must name it, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.tools.doctor.examination import ALL_CHECKS, Examination
from image_service.tools.doctor.outcomes import CheckStatus
from image_service.tools.doctor.response_checks import judge_first_byte
from image_service.tools.doctor.rules import ClientProfile
from image_service.tools.doctor.target import ImageUrl
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.tools.doctor.image_server import PATH, Mistake, Served, serving

if TYPE_CHECKING:
    from image_service.tools.doctor.outcomes import CheckOutcome

IMAGE = live_iso_with_minimal()
EXPECTED = {"dns": CheckStatus.WARN, "ignition": CheckStatus.WARN, "boot-records": CheckStatus.FAIL}
"""Of a correct server on loopback, whose image has neither boot records nor a config."""
OF_THE_MACHINE = "first-byte"
"""It says how busy the machine of the test is."""


def examine(url: str, profile: ClientProfile | None = None, *, deep: bool = False) -> dict[str, CheckOutcome]:
    outcomes = list(Examination(url=ImageUrl.parse(url), profile=profile, deep=deep).run())
    names = [outcome.name for outcome in outcomes]
    assert sorted(names) == sorted(ALL_CHECKS)
    return {outcome.name: outcome for outcome in outcomes}


def complaints(outcomes: dict[str, CheckOutcome]) -> dict[str, str]:
    """Return the statuses other than those of a correct server, of checks that were made."""
    return {
        name: str(outcome.status)
        for name, outcome in outcomes.items()
        if outcome.status in {CheckStatus.WARN, CheckStatus.FAIL}
        and outcome.status != EXPECTED.get(name)
        and name != OF_THE_MACHINE
    }


def test_correct_server_gets_no_complaint() -> None:
    with serving(IMAGE) as url:
        outcomes = examine(url, deep=True)
    assert complaints(outcomes) == {}
    assert all(outcomes[name].status == status for name, status in EXPECTED.items())
    for name in ("ranges", "multiple-ranges", "two-reads", "coherence", "kernel-arguments", "rootfs"):
        assert outcomes[name].status is CheckStatus.OK, outcomes[name]


def without_ranges(served: Served) -> Served:
    if served.range_field is None:
        return served.without("Accept-Ranges")
    return attrs.evolve(served, status=200).without("Accept-Ranges", "Content-Range").containing(IMAGE)


def lie_in_content_range(served: Served) -> Served:
    if served.status != 206:
        return served
    first, _, _ = served.fields["Content-Range"].removeprefix("bytes ").partition("-")
    return served.having(Content_Range=f"bytes {int(first) + 1}-{int(first) + len(served.body)}/{len(IMAGE)}")


def send_other_bytes(served: Served) -> Served:
    """Serve the right range of another file."""
    return served.containing(b"?" * len(served.body)) if served.range_field == "bytes=0-511" else served


def change_bytes(served: Served) -> Served:
    """Change the last byte of each range from the fourth connection on, with the same ETag."""
    if served.connection < 3 or served.range_field is None:
        return served
    return served.containing(served.body[:-1] + bytes([served.body[-1] ^ 1]))


def change_etag(served: Served) -> Served:
    return served.having(ETag='"two"') if served.number > 12 and served.status == 206 else served


def refuse_past_end(served: Served) -> Served:
    if served.range_field and served.range_field.endswith(f"-{len(IMAGE)}"):
        return attrs.evolve(served, status=416, body=b"").having(Content_Length="0")
    return served


def serve_beyond_size(served: Served) -> Served:
    return attrs.evolve(served, status=206) if served.status == 416 else served


def forget_size_in_416(served: Served) -> Served:
    return served.without("Content-Range") if served.status == 416 else served


def one_part_only(served: Served) -> Served:
    if served.fields.get("Content-Type", "").startswith("multipart"):
        return served.containing(served.body[: len(served.body) // 3])
    return served


def compress(served: Served) -> Served:
    return served.having(Content_Encoding="gzip") if served.method == "GET" else served


def refuse_head(served: Served) -> Served:
    return attrs.evolve(served, status=405) if served.method == "HEAD" else served


def differ_in_length(served: Served) -> Served:
    return served.having(Content_Length="17") if served.method == "HEAD" else served


def fail_late(served: Served) -> Served:
    """Answer the first reads of the image's content, and no later one."""
    is_late = served.range_field == f"bytes=131072-{2 * 131072 - 1}"
    return attrs.evolve(served, status=500) if is_late else served


def without_length(served: Served) -> Served:
    return served.without("Content-Length") if served.range_field is None else served


def redirect_nowhere(served: Served) -> Served:
    return attrs.evolve(served, status=302, body=b"").having(Location="http://[", Content_Length="0")


MISTAKES: dict[str, tuple[Mistake, dict[str, str]]] = {
    "no ranges": (without_ranges, {"accept-ranges": "fail", "ranges": "fail"}),
    "wrong Content-Range": (lie_in_content_range, {"ranges": "fail"}),
    "other bytes": (send_other_bytes, {"ranges": "fail"}),
    "bytes change": (change_bytes, {"two-reads": "fail"}),
    "ETag changes": (change_etag, {"two-reads": "fail"}),
    "no ETag": (lambda served: served.without("ETag"), {"etag": "warn"}),
    "weak ETag": (lambda served: served.having(ETag='W/"one"'), {"etag": "warn"}),
    "416 past the end": (refuse_past_end, {"range-past-end": "fail"}),
    "206 beyond the size": (serve_beyond_size, {"range-beyond-size": "fail"}),
    "416 without the size": (forget_size_in_416, {"range-beyond-size": "warn"}),
    "parts missing": (one_part_only, {"multiple-ranges": "fail"}),
    "compressed": (compress, {"content-coding": "fail"}),
    "reads fail late": (fail_late, {"image-reads": "fail"}),
    "no Content-Length": (without_length, {"content-length": "fail"}),
    "redirect to no URL": (redirect_nowhere, {"redirects": "fail"}),
    "HEAD refused": (refuse_head, {"head": "fail"}),
    "lower-case Accept-Ranges": (
        lambda served: served.without("Accept-Ranges").having(accept_ranges="bytes"),
        {"accept-ranges": "warn"},
    ),
    "not found": (lambda served: attrs.evolve(served, status=404), {"head": "fail", "head-and-get": "fail"}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_named(mistake: str) -> None:
    make, expected = MISTAKES[mistake]
    with serving(IMAGE, make) as url:
        outcomes = examine(url)
    assert complaints(outcomes) == expected
    assert all(outcomes[name].remedy for name in expected)


def test_wrong_length_of_head_is_named() -> None:
    with serving(IMAGE, differ_in_length) as url:
        outcomes = examine(url)
    assert outcomes["head-and-get"].status is CheckStatus.FAIL
    assert "content-length" in outcomes["head-and-get"].detail


def test_slowest_response_counts() -> None:
    def wait(served: Served) -> Served:
        return attrs.evolve(served, waits_seconds=0.3 if served.range_field == "bytes=-512" else 0)

    with serving(IMAGE, wait) as url:
        detail = examine(url)["first-byte"].detail
    assert float(detail.split()[1]) >= 0.3


@pytest.mark.parametrize(
    ("seconds", "profile", "status"),
    [
        (2.9, None, "ok"),
        (3.1, None, "warn"),
        (5.1, None, "fail"),
        (5.1, ClientProfile.QEMU, "fail"),
        (5.1, ClientProfile.UEFI_HTTP, "fail"),
        (5.1, ClientProfile.IPXE, "skip"),
    ],
)
def test_first_byte_is_compared_with_the_time_outs(
    seconds: float, profile: ClientProfile | None, status: str
) -> None:
    assert str(judge_first_byte(seconds, profile).status) == status


def test_slow_content_is_a_low_rate() -> None:
    def drip(served: Served) -> Served:
        return attrs.evolve(served, drip=1000 if served.range_field is None else 0)

    with serving(IMAGE, drip) as url:
        assert complaints(examine(url)) == {"rate": "warn"}


def test_bytes_that_change_after_the_whole_read_are_found_by_deep() -> None:
    def change(served: Served) -> Served:
        is_sample = served.range_field and len(served.body) not in {512, 1024, 100, 65536, 128 * 1024, 262144}
        return served.containing(served.body[:-1] + b"?") if is_sample and served.status == 206 else served

    with serving(IMAGE, change) as url:
        outcomes = examine(url, deep=True)
    assert outcomes["coherence"].status is CheckStatus.FAIL


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (None, "fail"),
        (ClientProfile.UEFI_HTTP, "fail"),
        (ClientProfile.IDRAC, "fail"),
        (ClientProfile.QEMU, "ok"),
        (ClientProfile.IPXE, "skip"),
    ],
    ids=str,
)
def test_redirect_is_judged_for_the_client(profile: ClientProfile | None, expected: str) -> None:
    with serving(IMAGE) as target:

        def redirect(served: Served) -> Served:
            return attrs.evolve(served, status=302, body=b"").having(Location=target, Content_Length="0")

        with serving(IMAGE, redirect) as url:
            outcomes = examine(url, profile)
    assert str(outcomes["redirects"].status) == expected
    assert outcomes["head"].status is CheckStatus.OK


@pytest.mark.parametrize(
    ("suffix", "media_type", "expected"),
    [
        (".iso", "text/plain", "ok"),
        (".efi", "application/octet-stream", "ok"),
        (".ISO", "application/octet-stream", "fail"),
        ("", "Application/Vnd.EFI-ISO", "ok"),
        ("", "application/vnd.efi-iso; charset=binary", "fail"),
    ],
)
def test_type_of_an_image_is_found_as_by_edk2(suffix: str, media_type: str, expected: str) -> None:
    path = f"/images/live{suffix}"
    with serving(IMAGE, lambda served: served.having(Content_Type=media_type), path=path) as url:
        outcomes = examine(url, ClientProfile.UEFI_HTTP)
    assert outcomes["media-type"].status == expected


def test_redirects_without_end_are_a_failure() -> None:
    def redirect(served: Served) -> Served:
        return attrs.evolve(served, status=302, body=b"").having(Location=PATH, Content_Length="0")

    with serving(IMAGE, redirect) as url:
        outcomes = examine(url)
    assert outcomes["redirects"].status is CheckStatus.FAIL
    assert outcomes["head"].status is CheckStatus.SKIP


def test_closed_port_is_a_failure_and_the_rest_is_skipped() -> None:
    with serving(IMAGE) as url:
        pass
    outcomes = examine(url)
    assert complaints(outcomes) == {"tcp": "fail"}
    assert outcomes["head"].detail == "not reached: tcp has failed"


def test_page_instead_of_an_image_is_a_failure() -> None:
    with serving(b"<html>" * 1000) as url:
        outcomes = examine(url)
    assert outcomes["image"].status is CheckStatus.FAIL
    assert outcomes["ignition"].status is CheckStatus.SKIP


def test_script_of_ipxe_is_not_taken_for_an_iso() -> None:
    with serving(b"#!ipxe\n" + bytes(5000)) as url:
        outcomes = examine(url, ClientProfile.IPXE)
    assert outcomes["image"].status is CheckStatus.OK
