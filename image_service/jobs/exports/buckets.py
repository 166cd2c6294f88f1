"""Checks, before the work, that an export can be stored. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

import threading
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from image_service.common.objects.s3_client import make_s3_client
from image_service.core.errors import StoreFailed
from image_service.jobs.ec2.errors import Ec2Error, invalid_value

if TYPE_CHECKING:
    from image_service.jobs.ec2.operations import Ec2Caller
    from image_service.settings.remote import S3Settings


class ExportBuckets:
    """Buckets of S3, by the credentials of this service. May be used in several threads.

    Args:
        settings: endpoint, region and credentials.
    """

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Any = None

    def check(self, caller: Ec2Caller, bucket: str, key: str) -> None:
        """Ensure that a caller may export to a bucket, which exists, and in which an object may be stored.

        The check begins an upload of the object, and aborts it.

        Raises:
            Ec2Error: the access key may not export to it, or the bucket is not there, or refuses the object.
            StoreFailed: S3 does not answer, or there are no credentials.
        """
        if not caller.may_export_to(bucket):
            raise Ec2Error("UnauthorizedOperation", f"the access key may not export to the bucket {bucket}")
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra, and slow to import

        place = {"Bucket": bucket, "Key": key}
        try:
            client = self._get_client()
            upload_id = client.create_multipart_upload(**place)["UploadId"]
            with suppress(ClientError):  # an upload that stays holds no bytes
                client.abort_multipart_upload(**place, UploadId=upload_id)
        except ClientError as error:
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            code = str(error.response.get("Error", {}).get("Code", "no code"))
            if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise StoreFailed(f"S3 cannot check a bucket: {code} (status {status})") from None
            fault = "does not exist" if status == HTTPStatus.NOT_FOUND else f"cannot be written: {code}"
            raise invalid_value(f"the bucket {bucket} {fault}") from None
        except BotoCoreError as error:
            raise StoreFailed(f"S3 cannot check a bucket: {type(error).__name__}") from None

    def _get_client(self) -> Any:  # noqa: ANN401 - botocore has no types
        with self._lock:
            if self._client is None:
                self._client = make_s3_client(self._settings)
            return self._client
