"""Builds the actions of imports, from settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.http.origins import AllowedOrigins, parse_origin
from image_service.common.transfer.client import TransferClient
from image_service.jobs.imports.actions import THREADS, TIMES, ImportActions

if TYPE_CHECKING:
    from image_service.common.concurrency.parts import PartsStack
    from image_service.jobs.metadata.composes import ComposeRepository
    from image_service.settings.jobs.ec2 import Ec2Settings


def allowed_object_stores(settings: Ec2Settings) -> AllowedOrigins:
    """Return the origins of imports."""
    origins = frozenset(map(parse_origin, settings.object_stores))
    return AllowedOrigins(origins, setting="EC2_OBJECT_STORES")


def build_imports(parts: PartsStack, settings: Ec2Settings, composes: ComposeRepository) -> ImportActions:
    """Build the actions; their requests end with the parts."""
    allowed = allowed_object_stores(settings)
    in_thread = parts.in_thread_pool(THREADS, "imports")
    client = TransferClient(allowed, times=TIMES)
    parts.callback(client.abort)
    return ImportActions(
        in_thread, composes, allowed, client, settings.poll_seconds, settings.bundle_key_file is not None
    )
