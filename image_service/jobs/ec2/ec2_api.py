"""EC2's Query API: verifies, reads, carries out and answers requests.

    POST  /, /services/compute    Action=…&Version=…&…    200

Requests are authenticated by their signatures alone, through every listener.
"""

from __future__ import annotations

import re
import time
from functools import cache
from typing import TYPE_CHECKING

from botocore.loaders import Loader
from botocore.model import ServiceModel
from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from image_service.core.errors import ImageServiceError, MethodNotAllowed, Unavailable
from image_service.jobs.ec2.errors import (
    Ec2Error,
    error_code_of,
    error_document,
    missing_parameter,
    status_of_code,
)
from image_service.jobs.ec2.parameters import parse_form, read_parameters
from image_service.jobs.ec2.replies import reply_document
from image_service.jobs.metrics.jobs_metrics import EC2, MeasuredRequest
from image_service.jobs.metrics.measured_api import OTHER
from image_service.server.http.request_id import new_request_id
from image_service.server.web_api.messages import ApiResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from image_service.jobs.ec2.operations import Ec2Caller, OperationHandler
    from image_service.jobs.ec2.signatures import SignatureVerifier
    from image_service.jobs.metrics.jobs_metrics import JobsMetrics
    from image_service.server.web_api.messages import ApiRequest

_log = Logger()

_XML = "text/xml;charset=UTF-8"
_VERSION = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}")
_FIRST_VERSION = "2006-06-26"
_SERVER_ERRORS = 500


@cache
def ec2_model() -> ServiceModel:
    """Return botocore's model of EC2, with `KeyName` of Eucalyptus; to read it takes a tenth of a second."""
    description = Loader().load_service_model("ec2", "service-2")
    specification = description["shapes"]["ImportInstanceLaunchSpecification"]["members"]
    specification["KeyName"] = {"shape": "String", "locationName": "keyName"}
    return ServiceModel(description, "ec2")


class Ec2Api:
    """EC2's Query API.

    Args:
        handlers: by operation; other operations of EC2 are unsupported.
        metrics: record the requests with a valid signature, by operation, except those whose clients have
            disconnected; the others by their error.
    """

    paths: frozenset[str] = frozenset({"/", "/services/compute", "/services/compute/"})
    max_body_bytes: int = 64 * 1024

    def __init__(
        self,
        verifier: SignatureVerifier,
        handlers: Mapping[str, OperationHandler],
        metrics: JobsMetrics,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verifier = verifier
        self._handlers = handlers
        self._metrics = metrics
        self._seconds = seconds
        self._model = ec2_model()

    async def respond(self, request: ApiRequest) -> ApiResponse:
        """Return the response to a request.

        Raises:
            MethodNotAllowed: it is not a POST.
            Ec2Error: it is not authenticated.
        """
        if request.method != "POST":
            raise MethodNotAllowed("this resource only allows POST", fields=(("Allow", "POST"),))
        try:
            caller = self._verifier.verify(request)
        except Ec2Error as error:
            self._metrics.record_refused_request(error.error_code)
            raise
        request.record_authenticated()
        begun = self._seconds()
        operation = OTHER
        try:
            form = _read_form(request)
            operation = self._find_operation(form)
            response = await self._carry_out(operation, caller, form)
        except ImageServiceError as error:
            response = self.render_error(error)
        except CancelledError:
            raise
        except Exception:
            self._record(operation, _SERVER_ERRORS, caller, begun)
            raise
        self._record(operation, response.status, caller, begun)
        return response

    def render_error(self, error: ImageServiceError) -> ApiResponse:
        """Return the response for an error; log it if the service is at fault."""
        error_code = error_code_of(error)
        status = status_of_code(error_code)
        request_id = new_request_id()
        if status >= _SERVER_ERRORS:
            log = _log.warn if isinstance(error, Unavailable) else _log.error
            log("a request failed: {detail}", detail=error.detail, code=error.code, request_id=request_id)
        fields = error.fields
        if error.retry_after_seconds is not None:
            fields += (("Retry-After", str(error.retry_after_seconds)),)
        return ApiResponse(status, error_document(error_code, error.detail, request_id), _XML, fields=fields)

    def _find_operation(self, form: dict[str, str]) -> str:
        """Return the name of the operation that a request calls, and take it from the form."""
        operation = form.pop("Action", "")
        if not operation:
            raise Ec2Error("MissingAction", "the request must contain the parameter Action")
        if operation not in self._model.operation_names:
            raise Ec2Error("InvalidAction", "Action must be the name of an operation of EC2")
        if operation not in self._handlers:
            supported = ", ".join(self._handlers)
            raise Ec2Error("UnsupportedOperation", f"{operation} is not supported; supported are {supported}")
        return operation

    async def _carry_out(self, operation: str, caller: Ec2Caller, form: dict[str, str]) -> ApiResponse:
        version = form.pop("Version", "")
        if not version:
            raise missing_parameter("Version")
        if not _VERSION.fullmatch(version) or not _FIRST_VERSION <= version <= self._model.api_version:
            raise Ec2Error("NoSuchVersion", f"Version must be a date up to {self._model.api_version}")
        if not caller.may_call(operation):
            raise Ec2Error("UnauthorizedOperation", f"the access key may not call {operation}")
        model = self._model.operation_model(operation)
        parameters = read_parameters(model.input_shape, form)
        if parameters.pop("DryRun", False):
            raise Ec2Error("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
        result = await self._handlers[operation](caller, parameters)
        return ApiResponse(200, reply_document(model, result, version, new_request_id()), _XML)

    def _record(self, operation: str, status: int, caller: Ec2Caller, begun: float) -> None:
        seconds = self._seconds() - begun
        self._metrics.record_request(EC2, MeasuredRequest("POST", operation, status, caller.tenant, seconds))


def _read_form(request: ApiRequest) -> dict[str, str]:
    if request.target != request.path:
        raise Ec2Error("InvalidQueryParameter", "parameters must be in the content, and the query empty")
    return parse_form(request.body)
