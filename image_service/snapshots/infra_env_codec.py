"""What infra-envs say about themselves, for a store: version, kind and architecture, in a JSON list."""

from __future__ import annotations

import json

from image_service.assisted.answers import InfraEnv
from image_service.errors import SnapshotUnreadable
from image_service.images.reference import Kind


def encode_infra_env(infra_env: InfraEnv) -> bytes:
    """Write what an infra-env says about which image it is for.

    Args:
        infra_env: any; its kernel arguments are left out, for they are pinned with its image.

    Returns:
        a few dozen bytes.
    """
    kind = infra_env.kind.value if infra_env.kind else None
    return json.dumps([infra_env.openshift_version, kind, infra_env.architecture]).encode()


def decode_infra_env(payload: bytes, said_at: float) -> InfraEnv:
    """Read what an infra-env has said.

    Args:
        payload: what ``encode_infra_env`` gave.
        said_at: when that was, seconds since the epoch.

    Returns:
        the infra-env, without kernel arguments.

    Raises:
        SnapshotUnreadable: another release has written it.
    """
    try:
        version, kind, architecture = json.loads(payload)
        return InfraEnv((), version, Kind(kind) if kind else None, architecture, said_at)
    except (TypeError, ValueError):
        raise SnapshotUnreadable("it is in a format that this release does not know") from None
