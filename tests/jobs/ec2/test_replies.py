from __future__ import annotations

from typing import Any

import pytest
from botocore.parsers import create_parser
from hypothesis import given
from hypothesis import strategies as st

from image_service.jobs.ec2.errors import error_document
from image_service.jobs.ec2.replies import reply_document
from image_service.settings.jobs.ec2 import OPERATIONS
from tests.jobs.ec2.model_values import operation_model, values_of


def parse(operation: str, document: bytes, status: int = 200) -> dict[str, Any]:
    response = {"headers": {}, "body": document, "status_code": status}
    parsed: dict[str, Any] = create_parser("ec2").parse(response, operation_model(operation).output_shape)
    return parsed


@given(st.data())
def test_botocore_parses_every_reply(data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from([name for name in OPERATIONS if not name.startswith("Cancel")]))
    model = operation_model(operation)
    result = data.draw(values_of(model.output_shape))
    parsed = parse(operation, reply_document(model, result, "2016-11-15", "request"))
    assert parsed.pop("ResponseMetadata") == {
        "RequestId": "request",
        "HTTPStatusCode": 200,
        "HTTPHeaders": {},
    }
    assert parsed == result


def test_replies_have_the_form_of_ec2() -> None:
    task = {"ConversionTaskId": "import-vol-1", "State": None, "Tags": [{"Key": "a", "Value": "<&>"}]}
    model = operation_model("ImportVolume")
    assert reply_document(model, {"ConversionTask": task}, "2010-08-31", "r").decode() == (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ImportVolumeResponse xmlns="http://ec2.amazonaws.com/doc/2010-08-31/"><requestId>r</requestId>'
        "<conversionTask><conversionTaskId>import-vol-1</conversionTaskId>"
        "<tagSet><item><key>a</key><value>&lt;&amp;&gt;</value></item></tagSet></conversionTask>"
        "</ImportVolumeResponse>\n"
    )


def test_operations_without_output_reply_true() -> None:
    document = reply_document(operation_model("CancelExportTask"), {}, "2016-11-15", "r")
    assert b"<requestId>r</requestId><return>true</return></CancelExportTaskResponse>" in document


def test_a_member_that_the_model_does_not_have_is_a_fault_of_the_handler() -> None:
    with pytest.raises(KeyError):
        reply_document(operation_model("ImportVolume"), {"Task": {}}, "2016-11-15", "r")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("a\x00\x1b\ufffe\ud800b", "a\ufffd\ufffd\ufffd\ufffdb"), ("a\r\n\tb", "a\r\n\tb")],
    ids=ascii,
)
def test_any_text_becomes_well_formed(text: str, parsed: str) -> None:
    document = reply_document(
        operation_model("ImportVolume"), {"ConversionTask": {"StatusMessage": text}}, "2016-11-15", "r"
    )
    assert parse("ImportVolume", document)["ConversionTask"] == {"StatusMessage": parsed}


def test_errors_have_the_form_of_ec2() -> None:
    document = error_document("InvalidParameterValue", "a <b>", "r")
    assert document.decode() == (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error><Code>InvalidParameterValue</Code>'
        "<Message>a &lt;b&gt;</Message></Error></Errors><RequestID>r</RequestID></Response>\n"
    )
    assert parse("ImportVolume", document, 400)["Error"] == {
        "Code": "InvalidParameterValue",
        "Message": "a <b>",
    }
