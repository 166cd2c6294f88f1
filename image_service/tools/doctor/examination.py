"""All checks of a URL, in their order: each rests on those before it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import TransferFailed
from image_service.core.families.coreos.live_iso import detect_architecture
from image_service.tools.doctor.boot_checks import (
    BOOT_CHECKS,
    check_boot_records,
    check_image,
    find_boot_ways,
)
from image_service.tools.doctor.coherence_checks import (
    COHERENCE_CHECKS,
    check_beginning_twice,
    check_coherence,
    check_two_reads,
    skip_coherence,
)
from image_service.tools.doctor.expiry import EXPIRY_CHECKS, check_expiry
from image_service.tools.doctor.live_checks import (
    COREOS_CHECKS,
    FAMILY_CHECKS,
    check_coreos,
    check_family,
    read_coreos,
)
from image_service.tools.doctor.network_checks import NETWORK_CHECKS, check_network
from image_service.tools.doctor.outcomes import complete, failed, passed, skipped
from image_service.tools.doctor.range_checks import RANGE_CHECKS, check_ranges
from image_service.tools.doctor.ranges import RangeReader
from image_service.tools.doctor.requests_seen import SEEN_CHECKS, check_requests
from image_service.tools.doctor.response_checks import (
    FIRST_BYTE_CHECKS,
    REDIRECT_CHECKS,
    RESPONSE_CHECKS,
    check_responses,
    follow_redirects,
    judge_first_byte,
)
from image_service.tools.doctor.tls_checks import TLS_CHECKS, check_tls, trusting_context
from image_service.tools.doctor.url_checks import URL_CHECKS, check_url
from image_service.tools.doctor.web_client import WebClient

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from image_service.core.formats.reading import ReadAt
    from image_service.tools.doctor.outcomes import CheckOutcome
    from image_service.tools.doctor.requests_seen import ServerView
    from image_service.tools.doctor.response_checks import ServedFile
    from image_service.tools.doctor.rules import ClientProfile
    from image_service.tools.doctor.target import ImageUrl

_READS = "image-reads"
ALL_CHECKS = (
    *URL_CHECKS,
    *NETWORK_CHECKS,
    *TLS_CHECKS,
    *REDIRECT_CHECKS,
    *RESPONSE_CHECKS,
    *EXPIRY_CHECKS,
    *RANGE_CHECKS,
    *BOOT_CHECKS,
    *FAMILY_CHECKS,
    *COREOS_CHECKS,
    _READS,
    *COHERENCE_CHECKS,
    *FIRST_BYTE_CHECKS,
    *SEEN_CHECKS,
)


@attrs.frozen(kw_only=True)
class Examination:
    """The URL to check, and how to check it.

    Args:
        profile: the client for which it is checked; None: any.
        ca_file: PEM file of authorities to trust beside the system's.
        deep: compare a thousand ranges with a whole read.
        fetch_view: asks an image service which requests it has seen; None: its listener is not known.
    """

    url: ImageUrl
    profile: ClientProfile | None = None
    ca_file: Path | None = None
    deep: bool = False
    fetch_view: Callable[[], ServerView] | None = None

    def run(self) -> Iterator[CheckOutcome]:
        """Yield an outcome for each of `ALL_CHECKS`; raise ConfigurationError if `ca_file` cannot be used."""
        return complete(self._run(), ALL_CHECKS)

    def _run(self) -> Iterator[CheckOutcome]:
        trusting = trusting_context(self.ca_file)
        yield check_requests(self.url, self.fetch_view)  # before there are requests of its own
        yield from check_url(self.url, self.profile)
        if not (yield from check_network(self.url, self.profile)):
            return
        if not (yield from check_tls(self.url, self.profile, trusting)):
            return
        final = yield from follow_redirects(self.url, self.profile)
        if final is None:
            return
        with WebClient(final) as client:
            file = yield from check_responses(client, self.profile)
            if file is None:
                return
            yield check_expiry(self.url, file.size, datetime.now(UTC))
            yield from self._check_content(file)
            yield judge_first_byte(client.slowest_seconds, self.profile)

    def _check_content(self, file: ServedFile) -> Iterator[CheckOutcome]:
        size = yield from check_ranges(file, self.profile)
        if size is None:
            for name in (*BOOT_CHECKS, *FAMILY_CHECKS, *COREOS_CHECKS, _READS):
                yield skipped(name, "ranges, by which the image is read, do not work")
            yield check_beginning_twice(file)
            yield skip_coherence("ranges do not work")
            return
        areas: list[tuple[int, int]] = []
        try:
            areas = yield from _check_image(RangeReader(file.client, size), size)
        except TransferFailed as error:
            yield failed(_READS, error.detail, "look into the server's log")
        else:
            yield passed(_READS, "all ranges by which the image was read are right")
        yield check_two_reads(file, size, areas)
        if self.deep:
            yield check_coherence(file, size)
        else:
            yield skip_coherence("--deep reads the whole image, and a thousand ranges")


def _check_image(read_at: ReadAt, size: int) -> Generator[CheckOutcome, None, list[tuple[int, int]]]:
    """Yield the outcomes about the image; return the areas that differ between customizations."""
    iso = yield from check_image(read_at, size)
    if iso is None:
        for name in (*BOOT_CHECKS[1:], *FAMILY_CHECKS, *COREOS_CHECKS):
            yield skipped(name, "the image is not an ISO")
        return []
    yield from check_family(iso, read_at, size)
    layout = yield from read_coreos(iso, read_at, size)
    ways = find_boot_ways(read_at, size)
    architecture = detect_architecture(read_at, layout.files) if layout else next(iter(ways.loaders), None)
    yield from check_boot_records(ways, architecture, iso.volume_id)
    if layout is None:
        return []
    yield from check_coreos(layout, read_at, architecture, ways.loaders)
    return [(layout.ignition.offset, layout.ignition.length)]
