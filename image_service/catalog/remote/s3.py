"""Signs URLs of S3 with botocore, the SDK of AWS, which finds the credentials and renews them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from image_service.files.block_cache.source import OriginFailed

if TYPE_CHECKING:
    from image_service.settings.remote import S3Settings

EXPIRES_SECONDS = 300
_DEFAULT_REGION = "us-east-1"


class S3Signer:
    """Returns presigned URLs; safe in several threads. The SDK is imported with the first one."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Any = None

    def __call__(self, url: str, version: str | None = None) -> str:
        """Return a URL to get ``s3://bucket/key`` from, which expires; raises OriginFailed."""
        split = urlsplit(url)
        key = unquote(url.partition(split.netloc + "/")[2])
        parameters = {"Bucket": split.netloc, "Key": key}
        if version is not None:
            parameters["VersionId"] = version
        client = self._get_client()
        try:
            signed: str = client.generate_presigned_url("get_object", parameters, EXPIRES_SECONDS)
        except Exception as error:  # noqa: BLE001 - the SDK raises of everything; its texts may hold anything
            raise OriginFailed(f"cannot be signed for S3: {type(error).__name__}") from None
        return signed

    def _get_client(self) -> Any:  # noqa: ANN401 - botocore has no types
        with self._lock:
            if self._client is None:
                self._client = _make_client(self._settings)
            return self._client


def _make_client(settings: S3Settings) -> Any:  # noqa: ANN401 - same
    try:
        # Imported here because it is an extra, and slow to import.
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415
        from botocore.session import Session  # noqa: PLC0415
    except ImportError:
        raise OriginFailed("needs the extra s3 of image-service, which is not installed") from None
    try:
        session = Session(profile=settings.profile)
        if settings.access_key_id and settings.secret_access_key:
            session.set_credentials(
                settings.access_key_id, settings.secret_access_key, settings.session_token
            )
        # A store of one's own seldom has a name for each bucket.
        style = {"addressing_style": "path"} if settings.endpoint_url else {}
        return session.create_client(
            "s3",
            region_name=settings.region or session.get_config_variable("region") or _DEFAULT_REGION,
            endpoint_url=settings.endpoint_url,
            config=Config(signature_version="s3v4", s3=style),
        )
    except (BotoCoreError, ValueError) as error:
        raise OriginFailed(f"cannot be signed for S3: {type(error).__name__}") from None
