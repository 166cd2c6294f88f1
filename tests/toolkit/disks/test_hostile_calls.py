"""The verbs refuse every hostile file: with its reason, within memory and time, and without a trace."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.clients import needs_client
from tests.toolkit.corpus.images import HOST_LINE, Hostile, write_host_file
from tests.toolkit.hostile import HOSTILE
from tests.toolkit.measured_calls import measured_calls
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from _pytest.mark.structures import ParameterSet

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


def _verbs_that_open(hostile: Hostile) -> tuple[str, ...]:
    if not hostile.declared:
        return "convert", "validate", "customize", "inspect"
    return (
        ("convert", "validate", "customize")
        if hostile.declared in {"raw", "qcow2"}
        else ("convert", "validate")
    )


def _calls() -> Iterator[ParameterSet]:
    """Yield each file with each verb that opens it; `make test` calls one verb for each file, in turn."""
    for number, hostile in enumerate(HOSTILE):
        verbs = _verbs_that_open(hostile)
        for verb in verbs:
            parameters = pytest.param if verb == verbs[number % len(verbs)] else soaked
            yield parameters(verb, hostile, id=f"{verb}-{hostile.name}")


@pytest.mark.parametrize(("verb", "hostile"), list(_calls()))
def test_hostile_file_is_refused_by_every_verb_that_opens_it(
    verb: str, hostile: Hostile, call: Call, tmp_path: Path
) -> None:
    if verb == "convert":
        needs_client("qemu-img")
    path = hostile.build(tmp_path, write_host_file(tmp_path))
    config = tmp_path / "config.ign"
    config.write_text('{"ignition": {"version": "3.4.0"}}')
    written = tmp_path / "written"
    written.mkdir()
    out = written / "out"
    out.write_bytes(b"as before")
    arguments: dict[str, list[str | Path]] = {
        "convert": [path, out, "--force", "--format", "raw"],
        "validate": [path, "--for", "openstack"],
        "customize": [path, out, "--ignition", config],
        "inspect": [path],
    }
    declared = ["--input-format", hostile.declared] if hostile.declared else []
    done = call([verb, *arguments[verb], *declared, "--json", "--scratch", str(written)])
    report = check_refusal(done, hostile.reason)
    if verb == "inspect":
        assert report["safe"] is False
        assert re.search(hostile.reason, "; ".join(report["reasons"]))
    assert list(written.iterdir()) == [out]
    assert out.read_bytes() == b"as before"
