"""Builds EC2's API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.files.reloaded import reloaded_file
from image_service.settings.jobs.ec2 import read_ec2_credentials

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from image_service.jobs.ec2.api import Ec2Api
    from image_service.jobs.ec2.operations import OperationHandler
    from image_service.jobs.metrics.jobs_metrics import JobsMetrics
    from image_service.settings.jobs.ec2 import Ec2Credential
    from image_service.settings.jobs.role import JobsRoleSettings

_log = Logger()


def build_ec2_api(
    settings: JobsRoleSettings, handlers: Mapping[str, OperationHandler], metrics: JobsMetrics
) -> Ec2Api | None:
    """Return the API; None if it is not served.

    Raises:
        ConfigurationError: the access keys cannot be used.
    """
    if "ec2" not in settings.jobs.apis:
        return None
    if settings.ec2.credentials_file is None:
        _log.info("EC2's API is not served: EC2_CREDENTIALS_FILE is not set")
        return None
    from image_service.jobs.ec2.api import Ec2Api  # noqa: PLC0415 - botocore is slow to import
    from image_service.jobs.ec2.signatures import SignatureVerifier  # noqa: PLC0415 - same

    access_keys = reloaded_file(settings.ec2.credentials_file, _read_access_keys)
    return Ec2Api(SignatureVerifier(access_keys.get), handlers, metrics)


def _read_access_keys(path: Path) -> Mapping[str, Ec2Credential]:
    return {credential.access_key: credential for credential in read_ec2_credentials(path)}
