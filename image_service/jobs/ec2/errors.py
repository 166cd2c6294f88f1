"""The errors of EC2's API, and their documents. Pure."""

from __future__ import annotations

from http import HTTPStatus

from image_service.core import errors
from image_service.jobs.ec2.xml_text import markup

_STATUSES = {
    "AuthFailure": 401,
    "DryRunOperation": 412,
    "InternalError": 500,
    "MethodNotAllowed": 405,
    "MissingAuthenticationToken": 403,
    "RequestEntityTooLarge": 413,
    "SignatureDoesNotMatch": 403,
    "UnauthorizedOperation": 403,
    "Unavailable": 503,
}

_ERROR_CODES: dict[type[errors.ImageServiceError], str] = {
    errors.ContentTooLarge: "RequestEntityTooLarge",
    errors.MethodNotAllowed: "MethodNotAllowed",
    errors.InvalidRequest: "InvalidQueryParameter",
    errors.Unavailable: "Unavailable",
    errors.StoreFailed: "Unavailable",
    errors.ImageServiceError: "InternalError",
}


class Ec2Error(errors.ImageServiceError):
    """A request to EC2's API is refused.

    Args:
        error_code: EC2's, such as ``InvalidParameterValue``; SDKs compare it.
        detail: the fault, and a value that would be right.
    """

    code = "ec2-error"

    def __init__(self, error_code: str, detail: str) -> None:
        super().__init__(detail)
        self.error_code = error_code


class SignatureRefused(Ec2Error, errors.Unauthorized):
    """The access key of a request is unknown, or its signature is wrong."""


def invalid_value(detail: str) -> Ec2Error:
    """Return the error for a parameter with an invalid value."""
    return Ec2Error("InvalidParameterValue", detail)


def missing_parameter(name: str) -> Ec2Error:
    """Return the error for a parameter that is not there."""
    return Ec2Error("MissingParameter", f"the request must contain the parameter {name}")


def error_code_of(error: errors.ImageServiceError) -> str:
    """Return EC2's code for an error."""
    if isinstance(error, Ec2Error):
        return error.error_code
    return next(_ERROR_CODES[kind] for kind in type(error).__mro__ if kind in _ERROR_CODES)


def status_of_code(error_code: str) -> int:
    """Return the HTTP status of one of EC2's error codes: of most 400."""
    return _STATUSES.get(error_code, HTTPStatus.BAD_REQUEST)


def error_document(error_code: str, message: str, request_id: str) -> bytes:
    """Return the XML document of an error."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{error_code}</Code><Message>{markup(message)}</Message></Error></Errors>"
        f"<RequestID>{request_id}</RequestID></Response>\n"
    ).encode()
