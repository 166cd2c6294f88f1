"""The verbs refuse every hostile file: with its reason, within memory and time, and without a trace."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.toolkit.corpus.images import HOST_LINE, Hostile, write_host_file
from tests.toolkit.hostile import HOSTILE
from tests.toolkit.measured_calls import measured_calls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.toolkit.measured_calls import Call, MeasuredCall

pytestmark = pytest.mark.acceptance

MAX_PEAK_BYTES = 256 << 20
MAX_SECONDS = 100  # 10 are promised, on a machine that does nothing else
UNSAFE = 6


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    with measured_calls() as function:
        yield function


def check_refusal(done: MeasuredCall, reason: str) -> dict[str, Any]:
    assert done.status == UNSAFE, done
    report: dict[str, Any] = json.loads(done.output)
    assert re.search(reason, report["error"]["reason"])
    assert done.messages == ""
    assert HOST_LINE.decode() not in done.output
    assert done.peak_bytes < MAX_PEAK_BYTES
    assert done.seconds < MAX_SECONDS
    return report


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_hostile_file_is_refused_by_every_verb_that_opens_it(
    hostile: Hostile, call: Call, tmp_path: Path
) -> None:
    path = hostile.build(tmp_path, write_host_file(tmp_path))
    config = tmp_path / "config.ign"
    config.write_text('{"ignition": {"version": "3.4.0"}}')
    written = tmp_path / "written"
    written.mkdir()
    out = written / "out"
    out.write_bytes(b"as before")
    declared = ["--input-format", hostile.declared] if hostile.declared else []
    common = [*declared, "--json", "--scratch", str(written)]

    check_refusal(call(["convert", path, out, "--force", "--format", "raw", *common]), hostile.reason)
    check_refusal(call(["validate", path, "--for", "openstack", *common]), hostile.reason)
    if hostile.declared in {None, "raw", "qcow2"}:
        check_refusal(call(["customize", path, out, "--ignition", config, *common]), hostile.reason)
    if not hostile.declared:
        inspected = check_refusal(call(["inspect", path, *common]), hostile.reason)
        assert inspected["safe"] is False
        assert re.search(hostile.reason, "; ".join(inspected["reasons"]))
    assert list(written.iterdir()) == [out]
    assert out.read_bytes() == b"as before"
