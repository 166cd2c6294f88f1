"""Checks, before the work, that an export can be stored. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.common.objects.s3_client import BucketLocation, S3Client, S3Failed
from image_service.core.errors import StoreFailed
from image_service.jobs.ec2.errors import Ec2Error, invalid_value

if TYPE_CHECKING:
    from image_service.common.objects.s3_client import S3Options
    from image_service.jobs.ec2.operations import Ec2Caller

_PASSING = (0, HTTPStatus.TOO_MANY_REQUESTS)  # 0: no answer


class ExportBuckets:
    """Buckets of S3, by the credentials of this service. May be used in several threads."""

    def __init__(self, options: S3Options) -> None:
        self._client = S3Client(options)

    def check(self, caller: Ec2Caller, bucket: str, key: str) -> None:
        """Ensure that a caller may export to a bucket, which exists, and in which an object may be stored.

        The check begins an upload of the object, and aborts it.

        Raises:
            Ec2Error: the access key may not export to it, or the bucket is not there, or refuses the object.
            StoreFailed: S3 does not answer, or there are no credentials.
        """
        if not caller.may_use(bucket):
            raise Ec2Error("UnauthorizedOperation", f"the access key may not export to the bucket {bucket}")
        location = BucketLocation(bucket, key)
        try:
            upload = self._client.begin_upload(location)
        except S3Failed as error:
            if error.status in _PASSING or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise StoreFailed(f"S3 cannot check a bucket: {error.reason}") from None
            is_absent = error.status == HTTPStatus.NOT_FOUND
            fault = "does not exist" if is_absent else f"cannot be written: {error.error_code}"
            raise invalid_value(f"the bucket {bucket} {fault}") from None
        with suppress(S3Failed):  # an upload that stays holds no bytes
            self._client.abort_upload(location, upload)
