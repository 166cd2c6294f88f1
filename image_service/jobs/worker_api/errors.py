"""The errors of the worker API: upstream's numbers; 401, 403, 500, 503 and 507 are additions."""

from __future__ import annotations

from image_service.core import errors
from image_service.jobs.api.errors import ErrorEntry, ErrorList

BASE_PATH = "/api/image-builder-worker/v1"

MALFORMED_ERROR_ID, UNKNOWN_ERROR_ID = 9, 14
TYPE_REFUSED = 15
MALFORMED_WORKER_ID, UNKNOWN_WORKER = 17, 18
STORE_DENIED = 500

_ENTRIES = (
    ErrorEntry(3, 415, "Only 'application/json' content is supported"),
    ErrorEntry(5, 404, "Token not found"),
    ErrorEntry(6, 400, "Job is not running"),
    ErrorEntry(7, 400, "Given job id is not a uuidv4"),
    ErrorEntry(8, 400, "Given job token is malformed"),
    ErrorEntry(MALFORMED_ERROR_ID, 400, "Invalid format for error id, it should be an integer as a string"),
    ErrorEntry(10, 400, "Malformed request, the content is not the JSON that is expected"),
    ErrorEntry(11, 404, "Requested resource doesn't exist"),
    ErrorEntry(12, 405, "Requested method isn't supported for resource"),
    ErrorEntry(13, 406, "Only 'application/json' content is supported"),
    ErrorEntry(UNKNOWN_ERROR_ID, 404, "Error with given id not found"),
    ErrorEntry(TYPE_REFUSED, 400, "Requested job type cannot be dequeued"),
    ErrorEntry(16, 400, "Tenant not found in JWT claims"),
    ErrorEntry(MALFORMED_WORKER_ID, 400, "Given worker id is not a uuidv4"),
    ErrorEntry(UNKNOWN_WORKER, 400, "Given worker id doesn't exist"),
    ErrorEntry(401, 401, "Account authentication could not be verified"),
    ErrorEntry(403, 403, "Account is unauthorized to perform this action"),
    ErrorEntry(STORE_DENIED, 500, "The object store refuses what this service asks for"),
    ErrorEntry(503, 503, "The service cannot do this now"),
    ErrorEntry(507, 507, "There is no room for the artifact"),
    ErrorEntry(1000, 500, "Error discarding artifact"),
    ErrorEntry(1001, 500, "Error creating artifact"),
    ErrorEntry(1002, 500, "Error writing artifact"),
    ErrorEntry(1003, 500, "Error resolving id from job token"),
    ErrorEntry(1004, 500, "Error finishing job"),
    ErrorEntry(1005, 500, "Error requesting job"),
    ErrorEntry(1006, 500, "Error retrieving job status"),
    ErrorEntry(1007, 500, "Unable to load openapi spec"),
    ErrorEntry(1008, 500, "Unable to register worker"),
    ErrorEntry(1009, 500, "Unable to update worker status"),
    ErrorEntry(2000, 500, "Unspecified internal error"),
)

WORKER_ERRORS = ErrorList(
    BASE_PATH,
    "IMAGE-BUILDER-WORKER-",
    _ENTRIES,
    {
        errors.UnsupportedMediaType: 3,
        errors.JobTokenUnknown: 5,
        errors.JobNotRunning: 6,
        errors.JobTokenMalformed: 8,
        errors.InvalidRequest: 10,
        errors.ContentTooLarge: 10,
        errors.MisdirectedRequest: 10,
        errors.RangeNotSatisfiable: 10,
        errors.NotFound: 11,
        errors.MethodNotAllowed: 12,
        errors.TenantMissing: 16,
        errors.Unauthorized: 401,
        errors.Forbidden: 403,
        errors.Unavailable: 503,
        errors.StoreFailed: 503,
        errors.StoreDenied: STORE_DENIED,
        errors.StoreFull: 507,
        errors.BudgetExceeded: 507,
        errors.ImageServiceError: 2000,
    },
    has_message=True,
)
