"""Each option refuses an invalid host name with status 2, and names itself."""

from __future__ import annotations

import pytest

from image_service.cli import main
from image_service.toolkit.commands import main as toolkit_main

CALLS = [
    (["images", "list", "--admin", "http://{}/"], "--admin"),
    (["link", "http://h/x", "--admin", "http://{}:8081"], "--admin"),
    (["infra-env", "list", "--api", "http://{}/"], "--api"),
    (["compose", "list", "--server", "http://{}/"], "--server"),
    (["worker", "--server", "https://{}"], "--server"),
    (["doctor", "http://{}/x.iso"], "URL"),
    (["loadtest", "http://{}/images/x.iso"], "URL 1"),
    (["loadtest", "http://h/{{infra_env}}/4.17/x86_64/full.iso", "--api", "http://{}"], "--api"),
    (["customize", "b.iso", "--minimal", "--rootfs-url", "http://{}/r.img", "-o", "o.iso"], "--rootfs-url"),
]
FAULT = "must have a host name of at most 253 characters, with 1 to 63 in each label"
TOOLKIT_CALLS = [
    (["fetch", "http://{}/", "o"], "MANIFEST"),
    (["fetch", "m.xml", "o", "--allow-host", "http://{}"], "--allow-host"),
]


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example", ".".join(["a" * 63] * 4)])
@pytest.mark.parametrize(("call", "name"), CALLS)
def test_bad_host_is_refused(
    call: list[str], name: str, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main([word.format(host) for word in call])
    except SystemExit as exited:
        status = exited.code
    assert status == 2
    told = capsys.readouterr().err
    assert name in told
    assert FAULT in told


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example", ".".join(["a" * 63] * 4)])
@pytest.mark.parametrize(("call", "name"), TOOLKIT_CALLS)
def test_bad_host_is_refused_by_the_toolkit(
    call: list[str], name: str, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toolkit_main([word.format(host) for word in call]) == 2
    told = capsys.readouterr().err
    assert f"argument {name}: " in told
    assert FAULT in told
