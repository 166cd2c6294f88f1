"""Verifies signatures (AWS Signature Version 4) of requests with botocore's signer."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from image_service.common.files.reloaded import reloaded_file
from image_service.jobs.ec2.errors import Ec2Error, SignatureRefused
from image_service.jobs.ec2.operations import MAX_SKEW_SECONDS, Ec2Caller
from image_service.jobs.principal import tenant_of_name
from image_service.settings.jobs.ec2 import read_ec2_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from image_service.server.web_api.messages import ApiRequest
    from image_service.settings.jobs.ec2 import Ec2Credential

_SERVICE = "ec2"
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=(?P<access_key>[^/,\s]+)/(?P<date>[0-9]{8})/(?P<region>[^/,\s]+)"
    r"/(?P<service>[^/,\s]+)/aws4_request *, *SignedHeaders=(?P<signed_names>[^,\s]+) *,"
    r" *Signature=(?P<signature>[0-9a-f]{64})"
)
_TIME = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_NO_SECRET_KEY = secrets.token_urlsafe()  # signs in the place of an unknown access key's


@attrs.frozen
class SignatureVerifier:
    """Finds the senders of requests.

    Args:
        credentials: returns those in force now, by access key.
    """

    _credentials: Callable[[], Mapping[str, Ec2Credential]]
    _now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @classmethod
    def of_file(cls, path: Path) -> SignatureVerifier:
        """Return a verifier with the access keys of a file, which is read again when it has changed.

        Raises:
            ConfigurationError: the file cannot be used.
        """

        def read(path: Path) -> Mapping[str, Ec2Credential]:
            return {credential.access_key: credential for credential in read_ec2_credentials(path)}

        return cls(reloaded_file(path, read).get)

    def verify(self, request: ApiRequest) -> Ec2Caller:
        """Return the sender of a request.

        An unknown access key takes as long as a wrong signature.

        Raises:
            Ec2Error: the request has no signature of this form, or it has expired.
            SignatureRefused: the access key is unknown, or the signature is not that of the request.
        """
        scope = _parse_authorization(request)
        timestamp = request.headers.get("x-amz-date", "")
        self._check_time(timestamp)
        if (scope["date"], scope["service"]) != (timestamp[:8], _SERVICE):
            raise _mismatch(
                f"its scope must be the date of X-Amz-Date, a region, and {_SERVICE}/aws4_request"
            )
        _check_signed_fields(request, scope["signed_names"].split(";"))
        credential = self._credentials().get(scope["access_key"])
        secret_key = _NO_SECRET_KEY if credential is None else credential.secret_key
        is_right = hmac.compare_digest(_sign(request, scope, secret_key), scope["signature"])
        if credential is None:
            raise SignatureRefused("AuthFailure", "the access key of the request is unknown")
        if not is_right:
            raise _mismatch("check the secret key, the name in Host, and whether a proxy alters requests")
        identity = f"{credential.access_key}/{scope['signature']}"
        return Ec2Caller(
            tenant_of_name(credential.tenant),
            credential.access_key,
            credential.operations,
            credential.buckets,
            hashlib.sha256(identity.encode()).hexdigest(),
        )

    def _check_time(self, timestamp: str) -> None:
        signed_at = _parse_time(timestamp)
        if signed_at is None:
            raise Ec2Error("IncompleteSignature", "X-Amz-Date must be a time such as 20261123T120000Z")
        if abs(self._now() - signed_at) > timedelta(seconds=MAX_SKEW_SECONDS):
            raise Ec2Error(
                "RequestExpired",
                f"X-Amz-Date must be at most {MAX_SKEW_SECONDS // 60} minutes before or after the time here,"
                f" {self._now().strftime(_TIME_FORMAT)}",
            )


def _parse_time(text: str) -> datetime | None:
    with suppress(ValueError):  # the month is 13, say
        if _TIME.fullmatch(text):
            return datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=UTC)
    return None


def _parse_authorization(request: ApiRequest) -> Mapping[str, str]:
    """Return the parts of the field, unverified."""
    field = request.headers.get("authorization")
    if field is None:
        raise Ec2Error(
            "MissingAuthenticationToken",
            "the request must have a signature (version 4) in its field Authorization; presigned URLs are not"
            " accepted",
        )
    match = _AUTHORIZATION.fullmatch(field)
    if match is None:
        raise Ec2Error(
            "IncompleteSignature",
            "Authorization must be AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/ec2/aws4_request,"
            " SignedHeaders=…, Signature=…",
        )
    return match.groupdict()


def _check_signed_fields(request: ApiRequest, signed_names: list[str]) -> None:
    """Refuse a request with fields that must be signed and are not, or that were removed or altered."""
    required = {"host", *(name for name in request.headers if name.startswith("x-amz-"))}
    for name in sorted(required.difference(signed_names)):
        raise _mismatch(f"the field {name} must be signed")
    for name in signed_names:
        if name not in request.headers:
            raise _mismatch("a signed field is absent")
    if request.headers.get("x-amz-content-sha256") not in {None, _digest(request.body)}:
        raise _mismatch("X-Amz-Content-Sha256 must be the digest of the content")


def _sign(request: ApiRequest, scope: Mapping[str, str], secret_key: str) -> str:
    """Return the signature of a request; of its fields only those count that are named as signed."""
    signer = SigV4Auth(Credentials(scope["access_key"], secret_key), _SERVICE, scope["region"])
    fields = HTTPHeaders()
    for name in scope["signed_names"].split(";"):
        fields[name] = request.headers[name]
    signed = AWSRequest(request.method, f"http://host{request.target}")
    signed.context["timestamp"] = request.headers["x-amz-date"]
    canonical = (
        request.method,
        request.path,
        signer.canonical_query_string(signed),
        f"{signer.canonical_headers(fields)}\n",
        scope["signed_names"],
        _digest(request.body),
    )
    signature: str = signer.signature(signer.string_to_sign(signed, "\n".join(canonical)), signed)
    return signature


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _mismatch(reason: str) -> SignatureRefused:
    return SignatureRefused("SignatureDoesNotMatch", f"the signature is not that of the request: {reason}")
