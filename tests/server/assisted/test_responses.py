from __future__ import annotations

import json

import attrs
import pytest
from twisted.web.http_headers import Headers

from image_service.core.errors import IgnitionInvalid, UpstreamError
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.reference import Kind
from image_service.server.assisted import responses
from image_service.server.assisted.responses import (
    PROCESS_BYTES,
    CompleteResponse,
    InfraEnv,
    parse_ignition,
    parse_infra_env,
)


def parse(body: bytes) -> InfraEnv:
    return parse_infra_env(CompleteResponse("infra-env 1", Headers(), body))


def parse_arguments(arguments: object) -> tuple[KernelArgument, ...]:
    return parse(json.dumps({"kernel_arguments": arguments}).encode()).kernel_arguments


def test_infra_env_is_parsed() -> None:
    operations = [{"operation": "append", "value": "a=1"}, {"operation": "delete", "value": 'b="2 3"'}]
    infra_env = parse(
        json.dumps(
            {
                "kernel_arguments": json.dumps(operations),
                "openshift_version": "4.20",
                "type": "minimal-iso",
                "cpu_architecture": "arm64",
                "name": "rack 1",
                "pull_secret_set": True,
            }
        ).encode()
    )
    assert infra_env.kernel_arguments == (
        KernelArgument(Operation.APPEND, "a=1"),
        KernelArgument(Operation.DELETE, 'b="2 3"'),
    )
    assert infra_env.openshift_version == "4.20"
    assert infra_env.kind is Kind.MINIMAL_ISO
    assert infra_env.architecture == "aarch64"
    assert infra_env.name == "rack 1"


@pytest.mark.parametrize(("name", "kept"), [("x" * 201, "x" * 200), (None, ""), (7, ""), (["x"], "")])
def test_name_that_is_not_a_short_text_fails_no_image(name: object, kept: str) -> None:
    assert parse(json.dumps({"name": name}).encode()).name == kept


def test_empty_infra_env_is_parsed() -> None:
    infra_env = parse(b"{}")
    assert infra_env.kernel_arguments == ()
    assert (infra_env.openshift_version, infra_env.kind, infra_env.architecture) == (None, None, None)


@pytest.mark.parametrize("kind", ["netboot", "pxe-initrd", "s390x-initrd-addrsize"])
def test_type_other_than_an_iso_is_none(kind: str) -> None:
    assert parse(json.dumps({"type": kind}).encode()).kind is None


@pytest.mark.parametrize("nothing", [None, "", "[]", "null"])
def test_absent_kernel_arguments_are_empty(nothing: object) -> None:
    assert parse_arguments(nothing) == ()


@pytest.mark.parametrize(
    "garbage",
    [
        [],
        {},
        7,
        "{}",
        "a=1",
        "[",
        "[" * 100_000,
        '["a"]',
        "[{}]",
        '[{"operation":"append"}]',
        '[{"operation":"append","value":7}]',
        '[{"operation":"prepend","value":"a"}]',
        '[{"operation":"APPEND","value":"a"}]',
        '[{"operation":7,"value":"a"}]',
    ],
)
def test_invalid_kernel_arguments_are_502(garbage: object) -> None:
    with pytest.raises(UpstreamError) as caught:
        parse_arguments(garbage)
    assert caught.value.retry_after_seconds


@pytest.mark.parametrize("operation", ["append", "replace", "delete"])
def test_every_kernel_argument_operation_is_parsed(operation: str) -> None:
    operations = [{"operation": operation, "value": value} for value in ("a=1=2", "", "$")]
    assert parse_arguments(json.dumps(operations)) == tuple(
        KernelArgument(Operation(operation), value) for value in ("a=1=2", "", "$")
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"7", b"\xff", b"{", b"[" * 100_000, b'{"openshift_version":4.2}', b'{"type":[]}'],
)
def test_invalid_infra_env_is_502(body: bytes) -> None:
    with pytest.raises(UpstreamError) as caught:
        parse(body)
    assert caught.value.retry_after_seconds
    assert caught.value.__context__ is None, "the decoder's error holds the whole text"


def test_secrets_are_not_in_repr() -> None:
    infra_env = parse(b'{"kernel_arguments":"[{\\"operation\\":\\"append\\",\\"value\\":\\"s3\\"}]"}')
    assert infra_env.kernel_arguments == (KernelArgument(Operation.APPEND, "s3"),)
    assert "s3" not in repr(infra_env)


@pytest.mark.parametrize("size", [1000, PROCESS_BYTES + 1000])
def test_config_of_any_size_is_judged_alike(size: int) -> None:
    config = json.dumps({"ignition": {"version": "3.2.0"}, "noise": "x" * size}).encode()
    response = CompleteResponse("the config", Headers(), config)
    assert parse_ignition(response).config == config
    with pytest.raises(UpstreamError, match=r"the config, [0-9]+ bytes, is not JSON"):
        parse_ignition(attrs.evolve(response, body=config[:-1]))
    with pytest.raises(IgnitionInvalid, match=r"assisted-service sent the config: .* is not 3\.x\.y"):
        parse_ignition(attrs.evolve(response, body=config.replace(b"3.2.0", b"2.2.0")))


def test_large_config_is_parsed_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "check_ignition", lambda _: pytest.fail("it is parsed here"))
    monkeypatch.setattr(responses, "passes_elsewhere", lambda _, data: len(data) > PROCESS_BYTES)
    parse_ignition(CompleteResponse("the config", Headers(), bytes(PROCESS_BYTES + 1)))
    with pytest.raises(pytest.fail.Exception):
        parse_ignition(CompleteResponse("the config", Headers(), bytes(PROCESS_BYTES)))
