"""Finds the reads to which a request belongs: those of its client and image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.server.boot_progress.clients import MAX_USER_AGENT, recognize_client
from image_service.server.boot_progress.recording import ReadKey

if TYPE_CHECKING:
    from image_service.core.images.reference import Reader
    from image_service.server.boot_progress.recording import PendingReads, ReadRecorder
    from image_service.server.http.head import Request
    from image_service.server.snapshots.storage.model import ComposedVersion


def find_reads(
    recorder: ReadRecorder, request: Request, reader: Reader, composed: ComposedVersion, length: int
) -> PendingReads:
    """Return the reads of a client of an image, with the client's name as this request shows it.

    Args:
        length: of the content that it gets.
    """
    ref, base = composed.version.ref, composed.version.base
    if ref.needs_customization:
        infra_env, kind = ref.infra_env_id, ref.kind.value if ref.kind else ""
    else:
        infra_env, kind = None, ref.artifact.value
    key = ReadKey(infra_env, base.version, base.architecture, kind, reader.address)
    reads = recorder.find(key, composed.representation.image)
    user_agent = request.headers.get("user-agent", "")
    client = recognize_client(user_agent, request.headers.get("accept", ""), length)
    reads.client = client if user_agent else client or reads.client
    reads.user_agent = user_agent[:MAX_USER_AGENT]
    return reads
