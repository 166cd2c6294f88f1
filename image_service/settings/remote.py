"""Settings of remote base images: their cache on local disk, and the credentials of S3."""

from __future__ import annotations

from pathlib import Path

import attrs

from image_service.common.objects.s3_client import S3Options
from image_service.settings import parsers
from image_service.settings.variables import setting

MIN_CACHE_BYTES = 128 * 1024 * 1024


@attrs.frozen(kw_only=True)
class RemoteSettings:
    """Remote base images."""

    cache_dir: Path | None = setting("REMOTE_CACHE_DIR", parse=parsers.writable_directory)
    """Directory of the blocks of remote base images, on a local disk or tmpfs, never NFS. It may be lost;
    each replica has its own. When not set: `remote` in `DATA_DIR`."""
    cache_max_bytes: int = setting(
        "REMOTE_CACHE_MAX_BYTES", parse=parsers.whole_number(MIN_CACHE_BYTES), default="10737418240"
    )
    """Disk space that the cache may take, in bytes, at least 128 MiB: give 1 GiB and more for live ISOs.
    A volume that has a limit of its own needs one tenth more than this."""
    prefetch: str = setting("REMOTE_PREFETCH", parse=parsers.one_of("boot", "all", "none"), default="boot")
    """The bytes to fetch before a client requests them. `boot`: boot files, before the image is ready; they
    are never evicted. `all`: the rest of the image as well, after it is ready. `none`: nothing."""
    check_seconds: float = setting("REMOTE_CHECK", parse=parsers.seconds, default="3600")
    """Interval at which the origin is asked whether the image has changed, in seconds. It is noticed earlier
    if an absent block is read."""


@attrs.frozen(kw_only=True)
class S3Settings:
    """S3. The AWS SDK (botocore, of the extra `s3`) reads these, and what else its documentation has."""

    access_key_id: str | None = setting("AWS_ACCESS_KEY_ID", parse=str, is_secret=True)
    """Access key for `s3://` URLs. When not set: the SDK searches for credentials in its files, by web
    identity, and where containers and instances of AWS find theirs."""
    secret_access_key: str | None = setting("AWS_SECRET_ACCESS_KEY", parse=str, is_secret=True)
    """Secret of the access key."""
    session_token: str | None = setting("AWS_SESSION_TOKEN", parse=str, is_secret=True)
    """Session token of temporary credentials."""
    region: str | None = setting("AWS_REGION", "AWS_DEFAULT_REGION", parse=str)
    """Region of the buckets. When not set: that of the SDK's configuration, else `us-east-1`."""
    endpoint_url: str | None = setting("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", parse=parsers.base_url)
    """URL of an S3-compatible store, whose buckets are then part of the path. When not set: that of AWS."""
    profile: str | None = setting("AWS_PROFILE", parse=str)
    """Profile in the SDK's files. When not set: `default`."""
    credentials_file: Path | None = setting("AWS_SHARED_CREDENTIALS_FILE", parse=Path)
    """File of credentials. When not set: `~/.aws/credentials`."""
    config_file: Path | None = setting("AWS_CONFIG_FILE", parse=Path)
    """File of the SDK's configuration. When not set: `~/.aws/config`."""
    role_arn: str | None = setting("AWS_ROLE_ARN", parse=str)
    """Role to take by web identity."""
    web_identity_token_file: Path | None = setting("AWS_WEB_IDENTITY_TOKEN_FILE", parse=Path)
    """File with the token for that role, as Kubernetes mounts it."""

    @property
    def options(self) -> S3Options:
        """The options of a client; the SDK reads the other variables by itself."""
        return S3Options(
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            session_token=self.session_token,
            region=self.region,
            endpoint_url=self.endpoint_url,
            profile=self.profile,
        )
