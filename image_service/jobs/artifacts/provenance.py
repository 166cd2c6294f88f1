"""What an image was made of: in-toto provenance, and an SBOM of what was added. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.jobs.model import Compose, Job, Json


def make_provenance(compose: Compose, jobs: Sequence[Job]) -> Json:
    """Return the in-toto statement with SLSA provenance (v1) of a finished compose."""
    raise NotImplementedError


def make_sbom(compose: Compose) -> Json:
    """Return the SPDX 2.3 document of what the compose has added to its base image."""
    raise NotImplementedError
