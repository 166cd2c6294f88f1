"""A release payload as the source of a stream: its ConfigMap says which ISO it has, and the ISO is in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.common.registry.connections import RegistryCall
from image_service.common.registry.errors import RegistryFailed
from image_service.common.registry.layers import read_files
from image_service.common.registry.references import parse_registry_url
from image_service.common.registry.release import BOOT_IMAGES, ReleaseDocuments
from image_service.core.errors import FormatError, StreamMetadataInvalid, Unavailable
from image_service.server.http.retry_after import parse_retry_after

if TYPE_CHECKING:
    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.registry.references import RegistryFile
    from image_service.server.catalog.download.origin_client import OriginClient
    from image_service.settings.stream_sources import StreamSource

_STREAM = re.compile(r"[a-z]+-[0-9]{1,2}")


@attrs.frozen
class ReleasePayload:
    """A payload, by its digest.

    Args:
        config_map: ``coreos-bootimages``.
    """

    file: RegistryFile
    config_map: bytes

    @property
    def digest(self) -> str:
        """Its digest: of the index, if it is for several architectures."""
        return self.file.reference.digest

    def url_of(self, stream: str) -> str:
        """Return the URL of the ISO of a stream.

        Args:
            stream: its name in the ConfigMap; where that is not of the form ``rhel-9``, the payload's oldest
                one is taken: it is the only one, or the ISO has another digest than the ConfigMap.
        """
        path = stream if _STREAM.fullmatch(stream) else ""
        return str(attrs.evolve(self.file, path=path))


def fetch_payload(
    source: StreamSource, known: str | None, client: OriginClient, interruption: Interruption
) -> ReleasePayload | None:
    """Fetch the payload that a stream's URL names; None if it has the digest that is known.

    Raises:
        Unavailable: it cannot be fetched.
        StreamMetadataInvalid: it is not a release payload.
        Interrupted: the service stops.
    """
    file, call = parse_registry_url(source.url), RegistryCall(client.limits, interruption)
    try:
        digest = client.registries.find_digest(file.reference, call)
        if digest == known:
            return None
        file = attrs.evolve(file, reference=file.reference.with_digest(digest))
        image = client.registries.resolve(file.reference, source.architectures[0], call)
        documents = ReleaseDocuments()
        found = read_files(client.registries, image, [BOOT_IMAGES], documents.write, call)
    except FormatError as error:
        raise StreamMetadataInvalid(f"{file}: {error.detail}") from None
    except RegistryFailed as error:
        seconds = parse_retry_after(error.retry_after)
        raise Unavailable(f"cannot fetch {file}: {error.reason}", retry_after_seconds=seconds) from None
    if BOOT_IMAGES not in found:
        raise StreamMetadataInvalid(f"{file} is not a release payload: it has no {BOOT_IMAGES}")
    return ReleasePayload(file, bytes(documents.contents[BOOT_IMAGES]))
