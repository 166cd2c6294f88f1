"""The errors of the composer API: osbuild-composer's numbers, and six of ours, named like their status."""

from __future__ import annotations

from image_service.core import errors
from image_service.jobs.api.errors import ErrorEntry, ErrorList

BASE_PATH = "/api/image-builder-composer/v2"

UNSUPPORTED_DISTRIBUTION = 4
UNSUPPORTED_ARCHITECTURE = 5
UNSUPPORTED_IMAGE_TYPE = 6
MALFORMED_ID = 14
UNKNOWN_COMPOSE = 15
MALFORMED_ERROR_ID = 16
UNKNOWN_ERROR = 17
INVALID_PAGE = 18
INVALID_SIZE = 19
MALFORMED_JSON = 20
UNKNOWN_PATH = 21
NUMBER_OF_IMAGES = 25
SCHEMA_VIOLATION = 30
WRONG_STATE = 31
UNSUPPORTED_CUSTOMIZATION = 35
UNSUPPORTED_UPLOAD = 38
BLUEPRINT_AND_CUSTOMIZATIONS = 39
BAD_REQUEST = 42
UNKNOWN_IMAGE = 404
IMAGE_IN_USE = 409
ARTIFACT_NOT_FOUND = 1022
UNSPECIFIED = 10000

_ENTRIES = (
    ErrorEntry(2, 403, "the access list does not admit these credentials"),
    ErrorEntry(3, 415, "the content must be application/json"),
    ErrorEntry(UNSUPPORTED_DISTRIBUTION, 400, "the distribution is not supported"),
    ErrorEntry(UNSUPPORTED_ARCHITECTURE, 400, "the distribution has no such architecture"),
    ErrorEntry(UNSUPPORTED_IMAGE_TYPE, 400, "the image type is not supported for this distribution"),
    ErrorEntry(MALFORMED_ID, 400, "the id of a compose must be a UUID"),
    ErrorEntry(UNKNOWN_COMPOSE, 404, "there is no compose with this id"),
    ErrorEntry(MALFORMED_ERROR_ID, 400, "the id of an error must be a number"),
    ErrorEntry(UNKNOWN_ERROR, 404, "there is no error with this id"),
    ErrorEntry(INVALID_PAGE, 400, "page must be a whole number from 0"),
    ErrorEntry(INVALID_SIZE, 400, "size must be a whole number from 1 to 1000"),
    ErrorEntry(MALFORMED_JSON, 400, "the content is not a JSON object"),
    ErrorEntry(UNKNOWN_PATH, 404, "there is no such resource"),
    ErrorEntry(22, 405, "the resource does not support this method"),
    ErrorEntry(23, 406, "the response is only available as application/json"),
    ErrorEntry(NUMBER_OF_IMAGES, 400, "a compose has exactly one image request"),
    ErrorEntry(26, 404, "the id is not that of a compose"),
    ErrorEntry(28, 400, "the token names no tenant"),
    ErrorEntry(SCHEMA_VIOLATION, 400, "the request does not match the OpenAPI document"),
    ErrorEntry(WRONG_STATE, 400, "the compose is not in the state that this request needs"),
    ErrorEntry(UNSUPPORTED_CUSTOMIZATION, 400, "a customization is not supported"),
    ErrorEntry(36, 400, "local saving of images is off"),
    ErrorEntry(UNSUPPORTED_UPLOAD, 400, "an upload target is not supported"),
    ErrorEntry(BLUEPRINT_AND_CUSTOMIZATIONS, 400, "a request has a blueprint or customizations, not both"),
    ErrorEntry(BAD_REQUEST, 400, "the request is invalid"),
    ErrorEntry(401, 401, "the token is missing or invalid"),
    ErrorEntry(UNKNOWN_IMAGE, 404, "there is no image with this id"),
    ErrorEntry(IMAGE_IN_USE, 409, "the image cannot be deleted now"),
    ErrorEntry(413, 413, "the content is too large"),
    ErrorEntry(429, 429, "too many composes of this tenant have not ended"),
    ErrorEntry(503, 503, "the service cannot answer now"),
    ErrorEntry(507, 507, "the tenant has no room left; delete composes or images"),
    ErrorEntry(ARTIFACT_NOT_FOUND, 400, "the image is not there any more"),
    ErrorEntry(UNSPECIFIED, 500, "the service failed"),
)

COMPOSER_ERRORS = ErrorList(
    BASE_PATH,
    "IMAGE-BUILDER-COMPOSER-",
    _ENTRIES,
    {
        errors.Forbidden: 2,
        errors.UnsupportedMediaType: 3,
        errors.UnknownBaseImage: UNSUPPORTED_DISTRIBUTION,
        errors.NotFound: UNKNOWN_PATH,
        errors.MethodNotAllowed: 22,
        errors.TenantMissing: 28,
        errors.Unprocessable: UNSUPPORTED_CUSTOMIZATION,
        errors.InvalidRequest: BAD_REQUEST,
        errors.MisdirectedRequest: BAD_REQUEST,
        errors.Unauthorized: 401,
        errors.Conflict: IMAGE_IN_USE,
        errors.ContentTooLarge: 413,
        errors.TooManyQueued: 429,
        errors.BudgetExceeded: 507,
        errors.Unavailable: 503,
        errors.StoreFailed: 503,
        errors.ImageServiceError: UNSPECIFIED,
    },
)
