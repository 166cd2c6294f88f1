from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import pytest
from botocore.serialize import create_serializer
from hypothesis import given
from hypothesis import strategies as st

from image_service.jobs.ec2.errors import Ec2Error
from image_service.jobs.ec2.parameters import parse_form, read_parameters
from image_service.settings.jobs.ec2 import OPERATIONS
from tests.jobs.ec2.model_values import operation_model, values_of

IMAGE = {
    "Image.Format": "VMDK",
    "Image.Bytes": "5",
    "Image.ImportManifestUrl": "http://a/m",
    "Volume.Size": "1",
}


def read(operation: str, form: dict[str, str]) -> dict[str, Any]:
    shape = operation_model(operation).input_shape
    return read_parameters(shape, parse_form(urlencode(form).encode()))


@given(st.data())
def test_parameters_that_botocore_serializes_are_read(data: st.DataObject) -> None:
    model = operation_model(data.draw(st.sampled_from(OPERATIONS)))
    parameters = data.draw(values_of(model.input_shape, min_items=1))
    body = urlencode(create_serializer("ec2").serialize_to_request(parameters, model)["body"])
    form = parse_form(body.encode())
    assert (form.pop("Action"), form.pop("Version")) == (model.name, "2016-11-15")
    assert read_parameters(model.input_shape, form) == parameters


def test_indices_may_be_huge_and_have_gaps() -> None:
    form = {"ConversionTaskId.999999999": "c", "ConversionTaskId.7": "b", "ConversionTaskId.5": "a"}
    assert read("DescribeConversionTasks", form) == {"ConversionTaskIds": ["a", "b", "c"]}
    disk = {f"DiskImage.999999999.{name}": value for name, value in IMAGE.items()}
    parameters = read("ImportInstance", {"Platform": "Linux", **disk})
    assert parameters["DiskImages"] == [
        {"Image": {"Format": "VMDK", "Bytes": 5, "ImportManifestUrl": "http://a/m"}, "Volume": {"Size": 1}}
    ]


@pytest.mark.parametrize(
    ("form", "member", "value"),
    [
        ({"Monitoring.Enabled": "false"}, "Monitoring", False),
        ({"Monitoring": "true"}, "Monitoring", True),
        ({"KeyName": "my-key"}, "KeyName", "my-key"),
        ({"UserData": "IyEvYmluL3NoCg=="}, "UserData", {"Data": "IyEvYmluL3NoCg=="}),
        ({"Placement.Tenancy": "dedicated"}, "Placement", {"Tenancy": "dedicated"}),
    ],
)
def test_parameters_of_instances_may_be_spelled_as_euca2ools_does(
    form: dict[str, str], member: str, value: object
) -> None:
    sent = {f"LaunchSpecification.{name}": text for name, text in form.items()}
    assert read("ImportInstance", {"Platform": "Linux", **sent})["LaunchSpecification"] == {member: value}


@pytest.mark.parametrize(
    "name", ["Monitoring.Level", "Keyname", "UserData.Text", "Monitoring.Enabled.1", "ImageId", "KeyName.1"]
)
def test_other_parameters_of_instances_are_unknown(name: str) -> None:
    form = {"Platform": "Linux", f"LaunchSpecification.{name}": "true"}
    with pytest.raises(Ec2Error) as raised:
        read("ImportInstance", form)
    assert raised.value.error_code == "UnknownParameter"


def test_many_parameters_are_read_in_one_pass() -> None:
    ids = {f"ConversionTaskId.{index}": str(index) for index in range(1, 1500)}
    assert read("DescribeConversionTasks", ids)["ConversionTaskIds"] == list(ids.values())


@pytest.mark.parametrize(
    ("operation", "form", "code", "detail"),
    [
        ("ImportVolume", {}, "MissingParameter", "parameter Image"),
        ("ImportVolume", {**IMAGE, "Image.Format": None}, "MissingParameter", "parameter Image.Format"),
        (
            "ImportInstance",
            {"Platform": "", "DiskImage.3.Image.Bytes": "5"},
            "MissingParameter",
            "e.3.Image.F",
        ),
        ("ImportVolume", {**IMAGE, "ImageFormat": "RAW"}, "UnknownParameter", "parameter ImageFormat"),
        ("ImportVolume", {**IMAGE, "Image.Sise": "5"}, "UnknownParameter", "parameter Image.Sise"),
        ("ImportVolume", {**IMAGE, "Image": "5"}, "UnknownParameter", "parameter Image"),
        ("ImportVolume", {**IMAGE, "Description.1": "5"}, "UnknownParameter", "parameter Description.1"),
        ("ImportVolume", {**IMAGE, "image.format": "RAW"}, "UnknownParameter", "parameter image"),
        ("DescribeExportTasks", {"ExportTaskId": "x"}, "UnknownParameter", "parameter ExportTaskId"),
        ("DescribeExportTasks", {"ExportTaskId.0": "x"}, "UnknownParameter", "ExportTaskId.0"),
        ("DescribeExportTasks", {"ExportTaskId.01": "x"}, "UnknownParameter", "ExportTaskId.01"),
        ("DescribeExportTasks", {"ExportTaskId.1000000000": "x"}, "UnknownParameter", "an index"),
        ("DescribeExportTasks", {"ExportTaskId.x": "x"}, "UnknownParameter", "an index"),
        ("ImportVolume", {**IMAGE, "Volume.Size": "1.5"}, "InvalidParameterValue", "Volume.Size"),
        ("ImportVolume", {**IMAGE, "Volume.Size": ""}, "InvalidParameterValue", "Volume.Size"),
        ("ImportVolume", {**IMAGE, "Volume.Size": "9" * 19}, "InvalidParameterValue", "18 digits"),
        ("ImportVolume", {**IMAGE, "Volume.Size": "٣"}, "InvalidParameterValue", "Volume.Size"),
        ("ImportVolume", {**IMAGE, "DryRun": "yes"}, "InvalidParameterValue", "DryRun must be true or false"),
        ("ImportVolume", {**IMAGE, "Description": "a\x00b"}, "InvalidCharacter", "Description"),
        ("ImportVolume", {**IMAGE, "Description": "\x1b[0m"}, "InvalidCharacter", "Description"),
        ("ImportVolume", {**IMAGE, "Description": "\uffff"}, "InvalidCharacter", "Description"),
    ],
    ids=str,
)
def test_faults_name_the_parameter_as_the_client_does(
    operation: str, form: dict[str, str | None], code: str, detail: str
) -> None:
    with pytest.raises(Ec2Error) as caught:
        read(operation, {name: text for name, text in form.items() if text is not None})
    assert caught.value.error_code == code
    assert detail in caught.value.detail


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\xff\xfe", "InvalidCharacter"),
        (b"Description=%ff", "InvalidCharacter"),
        (b"A=1&B=2&A=1", "InvalidQueryParameter"),
        (b'{"Action": "ImportVolume"}', "InvalidQueryParameter"),
        (b"Image..Format=RAW", "InvalidQueryParameter"),
        (b".=", "InvalidQueryParameter"),
        (b"Description.=x", "InvalidQueryParameter"),
        (b"a" * 65536, "InvalidQueryParameter"),
        (b".".join([b"a"] * 32768), "InvalidQueryParameter"),
    ],
    ids=["raw", "escaped", "twice", "json", "empty-part", "dot", "end", "long", "deep"],
)
def test_other_content_is_no_form(body: bytes, code: str) -> None:
    with pytest.raises(Ec2Error) as caught:
        parse_form(body)
    assert caught.value.error_code == code


@given(st.binary(max_size=200))
def test_any_content_is_read_or_refused(body: bytes) -> None:
    with suppress(Ec2Error):
        read_parameters(operation_model("ImportInstance").input_shape, parse_form(body))


def test_line_ends_and_other_languages_are_kept() -> None:
    form = parse_form(urlencode({"Description": "über\r\n\t🙂"}).encode())
    assert form == {"Description": "über\r\n\t🙂"}
