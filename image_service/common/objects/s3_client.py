"""Clients of S3 by botocore, the SDK of AWS, which finds the credentials and renews them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from image_service.core.errors import StoreFailed

if TYPE_CHECKING:
    from image_service.settings.remote import S3Settings

_DEFAULT_REGION = "us-east-1"
_ATTEMPTS = 5


def make_s3_client(settings: S3Settings, region: str | None = None) -> Any:  # noqa: ANN401 - botocore has no types
    """Return a client, which may be used in several threads.

    Args:
        settings: endpoint, region and credentials.
        region: instead of theirs.

    Raises:
        StoreFailed: botocore is not installed, or refuses the settings.
    """
    try:
        # Imported here because it is an extra, and slow to import.
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415
        from botocore.session import Session  # noqa: PLC0415
    except ImportError:
        raise StoreFailed("S3 needs the extra s3 of image-service, which is not installed") from None
    try:
        session = Session(profile=settings.profile)
        if settings.access_key_id and settings.secret_access_key:
            session.set_credentials(
                settings.access_key_id, settings.secret_access_key, settings.session_token
            )
        # Other stores than AWS seldom have a host name for each bucket.
        style = {"addressing_style": "path"} if settings.endpoint_url else {}
        config = Config(
            signature_version="s3v4",
            s3=style,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        )
        return session.create_client(
            "s3",
            region_name=region or settings.region or session.get_config_variable("region") or _DEFAULT_REGION,
            endpoint_url=settings.endpoint_url,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise StoreFailed(f"the settings of S3 are invalid: {type(error).__name__}") from None
