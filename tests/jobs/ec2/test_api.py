from __future__ import annotations

from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import attrs
import pytest
from defusedxml.ElementTree import fromstring
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred

from image_service.core.errors import EngineUnavailable, ImageServiceError, MethodNotAllowed, StoreFailed
from image_service.jobs.ec2.ec2_api import Ec2Api
from image_service.jobs.ec2.errors import Ec2Error, SignatureRefused
from image_service.jobs.ec2.signatures import SignatureVerifier
from image_service.jobs.metrics.jobs_metrics import MeasuredRequest
from image_service.settings.jobs.ec2 import OPERATIONS
from tests.jobs.ec2.signing import CREDENTIAL, NOW, signed_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.jobs.ec2.operations import Ec2Caller
    from image_service.server.web_api.messages import ApiResponse

READER = attrs.evolve(CREDENTIAL, access_key="READER", operations=("Describe*",))
IMPORT_PARAMETERS = (
    *(
        "Platform",
        "Description",
        "DiskImage.1.Image.Format",
        "DiskImage.1.Image.Bytes",
        "DiskImage.999999999",
    ),
    *(
        "LaunchSpecification.Monitoring",
        "LaunchSpecification.GroupName.1",
        "DiskImage.1",
        "DiskImage.x.Image",
    ),
)
CANCEL = {"Action": "CancelConversionTask", "Version": "2016-11-15", "ConversionTaskId": "import-vol-1"}


class Operations:
    """Records the calls of two operations, and fails as a test says."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, str, Mapping[str, Any]]] = []
        self.requests: list[tuple[str, MeasuredRequest]] = []
        self.refused: list[str] = []
        self._error = error

    def record_request(self, api: str, request: MeasuredRequest) -> None:
        self.requests.append((api, request))

    def record_refused_request(self, code: str) -> None:
        self.refused.append(code)

    async def describe(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls.append(("describe", caller.tenant, parameters))
        return {"ConversionTasks": [{"ConversionTaskId": "import-i-1", "State": "active"}]}

    async def cancel(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls.append(("cancel", caller.tenant, parameters))
        if self._error is not None:
            raise self._error
        return {}

    async def import_instance(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls.append(("import", caller.tenant, parameters))
        return {"ConversionTask": {"ImportInstance": {"Platform": parameters["Platform"]}}}

    @cached_property
    def api(self) -> Ec2Api:
        handlers = {
            "DescribeConversionTasks": self.describe,
            "CancelConversionTask": self.cancel,
            "ImportInstance": self.import_instance,
        }
        credentials = {each.access_key: each for each in (CREDENTIAL, READER)}
        metrics: Any = self
        times = cycle((5.0, 7.0))
        return Ec2Api(
            SignatureVerifier(lambda: credentials, lambda: NOW), handlers, metrics, lambda: next(times)
        )


def send(operations: Operations, form: Mapping[str, str] | bytes, **signed: Any) -> Any:
    """Return the response to a request, or the Failure."""
    outcome: list[Any] = []
    Deferred.fromCoroutine(operations.api.respond(signed_request(form, **signed))).addBoth(outcome.append)
    return outcome[0]


def error_of(response: ApiResponse) -> tuple[int, str | None]:
    """Return the status and the code of an error."""
    return response.status, fromstring(response.body).findtext("Errors/Error/Code")


@pytest.mark.parametrize("version", ["2016-11-15", "2013-10-15", "2010-08-31", "2006-06-26"])
def test_replies_are_of_the_version_of_the_request(version: str) -> None:
    operations = Operations()
    form = {"Action": "DescribeConversionTasks", "Version": version, "ConversionTaskId.1": "import-i-1"}
    response = send(operations, form, path="/services/compute", credential=READER)
    namespace = f"{{http://ec2.amazonaws.com/doc/{version}/}}"
    root = fromstring(response.body)
    assert (response.status, response.content_type) == (200, "text/xml;charset=UTF-8")
    assert root.tag == f"{namespace}DescribeConversionTasksResponse"
    task = root.find(f"{namespace}conversionTasks/{namespace}item")
    assert task is not None
    assert task.findtext(f"{namespace}state") == "active"
    assert operations.calls == [("describe", "org-42", {"ConversionTaskIds": ["import-i-1"]})]


@pytest.mark.parametrize(
    ("changes", "signed", "expected"),
    [
        ({"Action": None}, {}, (400, "MissingAction")),
        ({"Action": "Cancel"}, {}, (400, "InvalidAction")),
        ({"Action": "RunInstances"}, {}, (400, "UnsupportedOperation")),
        ({"Version": None}, {}, (400, "MissingParameter")),
        ({"Version": "2016-11-16"}, {}, (400, "NoSuchVersion")),
        ({"Version": "2001-01-01"}, {}, (400, "NoSuchVersion")),
        ({"Version": "latest"}, {}, (400, "NoSuchVersion")),
        ({"ConversionTaskId": None}, {}, (400, "MissingParameter")),
        ({"TaskId": "1"}, {}, (400, "UnknownParameter")),
        ({"ReasonMessage": "\x00"}, {}, (400, "InvalidCharacter")),
        ({"DryRun": "true"}, {}, (412, "DryRunOperation")),
        ({"DryRun": "perhaps"}, {}, (400, "InvalidParameterValue")),
        ({}, {"credential": READER}, (403, "UnauthorizedOperation")),
        ({"DryRun": "true"}, {"credential": READER}, (403, "UnauthorizedOperation")),
        ({}, {"query": "Action=CancelConversionTask"}, (400, "InvalidQueryParameter")),
    ],
    ids=str,
)
def test_refused_requests_do_nothing(
    changes: Mapping[str, str | None], signed: Mapping[str, Any], expected: tuple[int, str]
) -> None:
    operations = Operations()
    form = {name: text for name, text in {**CANCEL, **changes}.items() if text is not None}
    assert error_of(send(operations, form, **signed)) == expected
    assert operations.calls == []


def test_a_request_that_is_no_dry_run_is_carried_out() -> None:
    operations = Operations()
    response = send(operations, {**CANCEL, "DryRun": "false"})
    assert b"<return>true</return>" in response.body
    assert operations.calls == [("cancel", "org-42", {"ConversionTaskId": "import-vol-1"})]


ANY_OPERATIONS = Operations()
NAMES = st.sampled_from(["Action", "Version", "DryRun", *IMPORT_PARAMETERS]) | st.text(max_size=20)
TEXTS = st.sampled_from(["true", "2016-11-15", "1", "Windows", *OPERATIONS]) | st.text(max_size=20)
FORMS = st.dictionaries(NAMES, TEXTS).map(lambda form: urlencode(form).encode())


@given(
    st.binary(max_size=200)
    | FORMS
    | FORMS.map(lambda form: b"Action=ImportInstance&Version=2016-11-15&" + form)
)
def test_any_signed_content_is_answered(body: bytes) -> None:
    response = send(ANY_OPERATIONS, body)
    assert response.status in {200, 400, 412}
    assert fromstring(response.body).tag == "Response" or response.status == 200


@pytest.mark.parametrize(
    ("error", "expected", "retry"),
    [
        (Ec2Error("InvalidConversionTaskId", "unknown"), (400, "InvalidConversionTaskId"), ()),
        (Ec2Error("ResourceLimitExceeded", "many"), (400, "ResourceLimitExceeded"), ()),
        (StoreFailed("locked"), (503, "Unavailable"), ()),
        (EngineUnavailable("down", retry_after_seconds=7), (503, "Unavailable"), (("Retry-After", "7"),)),
        (ImageServiceError("broken"), (500, "InternalError"), ()),
    ],
    ids=["code", "limit", "store", "engine", "other"],
)
def test_errors_of_operations(
    error: ImageServiceError, expected: tuple[int, str], retry: tuple[tuple[str, str], ...]
) -> None:
    response = send(Operations(error), CANCEL)
    assert (error_of(response), response.fields) == (expected, retry)


def test_requests_without_a_valid_signature_are_counted_by_their_errors() -> None:
    operations = Operations()
    nobody = attrs.evolve(CREDENTIAL, access_key="nobody")
    assert send(operations, CANCEL, credential=nobody).check(SignatureRefused)
    assert operations.refused == ["AuthFailure"]
    response: list[Any] = []
    request = attrs.evolve(signed_request(CANCEL), method="GET")
    Deferred.fromCoroutine(operations.api.respond(request)).addErrback(response.append)
    assert response[0].check(MethodNotAllowed)
    refused = operations.api.render_error(response[0].value)
    assert (error_of(refused), refused.fields) == ((405, "MethodNotAllowed"), (("Allow", "POST"),))
    assert operations.requests == []


@pytest.mark.parametrize(
    ("form", "error", "name", "status"),
    [
        (CANCEL, None, "CancelConversionTask", 200),
        (CANCEL, Ec2Error("InvalidConversionTaskId", "unknown"), "CancelConversionTask", 400),
        (CANCEL, ZeroDivisionError(), "CancelConversionTask", 500),
        ({**CANCEL, "Action": "made-up"}, None, "other", 400),
    ],
    ids=["success", "error", "unexpected", "unknown"],
)
def test_requests_are_measured_by_operation(
    form: Mapping[str, str], error: Exception | None, name: str, status: int
) -> None:
    operations = Operations(error)
    send(operations, form)
    assert operations.requests == [("ec2", MeasuredRequest("POST", name, status, "org-42", 2.0))]


def test_requests_whose_clients_have_disconnected_are_not_measured() -> None:
    operations = Operations(CancelledError())
    assert send(operations, CANCEL).check(CancelledError)
    assert operations.requests == []
