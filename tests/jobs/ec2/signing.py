"""Requests to EC2's API, signed without botocore: an oracle for its signer."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from image_service.server.web_api.messages import ApiRequest
from image_service.settings.jobs.ec2 import Ec2Credential

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)
HOST = "images.example.com:8091"
CREDENTIAL = Ec2Credential("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "42", ("*",), ("*",))


def signed_request(  # noqa: PLR0913 - the parts that a signature covers
    form: Mapping[str, str] | bytes,
    *,
    path: str = "/",
    query: str = "",
    fields: Mapping[str, str] | None = None,
    at: datetime = NOW,
    region: str = "us-east-1",
    service: str = "ec2",
    credential: Ec2Credential = CREDENTIAL,
) -> ApiRequest:
    """Return a signed request.

    Args:
        form: its parameters, or its content.
        path: of the request.
        query: already in canonical order.
        fields: more that are signed, by lower-case name.
        at: its time.
        region: of its scope.
        service: same.
        credential: that signs it.
    """
    body = form if isinstance(form, bytes) else urlencode(form).encode()
    time = at.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": HOST, "x-amz-date": time, **(fields or {})}
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        (
            "POST",
            path,
            query,
            *(f"{name}:{headers[name]}" for name in sorted(headers)),
            "",
            names,
            sha256(body).hexdigest(),
        )
    )
    scope = f"{time[:8]}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{credential.secret_key}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential.access_key}/{scope}, SignedHeaders={names},"
        f" Signature={key.hex()}"
    )
    target = f"{path}?{query}" if query else path
    return ApiRequest("POST", path, body=body, headers=headers, target=target)
