from __future__ import annotations

import traceback
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import SnapshotUnreadable
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.customization import Customization
from image_service.core.images.reference import Kind
from image_service.server.assisted.responses import InfraEnv
from image_service.server.snapshots.storage.codec import (
    decode_customization,
    decode_infra_env,
    encode_customization,
    encode_infra_env,
)

SIMPLE = Customization(
    b'{"ignition":{"version":"3.1.0"}}',
    (KernelArgument(Operation.REPLACE, "a=1=2"),),
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    b"\x1f\x8b",
)
ENCODED = encode_customization(SIMPLE)

customizations = st.builds(
    Customization,
    st.binary(),
    st.lists(st.builds(KernelArgument, st.sampled_from(Operation), st.text(st.characters()))).map(tuple),
    st.none() | st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3, seconds=1))])),
    st.none() | st.binary(),
    st.none() | st.text(),
)


@given(customizations)
def test_customization_is_decoded_as_it_was_encoded(customization: Customization) -> None:
    assert decode_customization(encode_customization(customization)) == customization


def test_absent_ramdisk_differs_from_an_empty_one() -> None:
    for ramdisk in (None, b""):
        customization = Customization(b"{}", (), None, ramdisk)
        assert decode_customization(encode_customization(customization)).ramdisk == ramdisk


def test_lone_surrogates_are_encoded() -> None:
    customization = Customization(b"", (KernelArgument(Operation.APPEND, "\ud800"),), None)
    assert decode_customization(encode_customization(customization)) == customization


def test_payload_of_the_first_release_is_decoded() -> None:
    """Mounts outlive updates: a change of what is written must be a new format."""
    head = (
        b'{"kernel_arguments": [["replace", "a=1=2"]], "modified": "2026-01-02T03:04:05+00:00",'
        b' "ignition_bytes": 32, "ramdisk_bytes": 2}'
    )
    written = b"\x01\0\0\0" + bytes([len(head)]) + head + b'{"ignition":{"version":"3.1.0"}}\x1f\x8b'
    assert written == ENCODED
    assert decode_customization(written) == SIMPLE


def test_ramdisk_of_64_mib_is_copied_once_each_way() -> None:
    size = 64 * 1024 * 1024
    customization = Customization(b"{}", (), None, bytes(size))
    tracemalloc.start()
    try:
        encoded = encode_customization(customization)
        decoded = decode_customization(encoded)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoded == customization
    assert peak_bytes < 2 * size + 1024 * 1024


@given(st.binary() | st.binary().map(lambda rest: ENCODED[:9] + rest))
def test_other_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(SnapshotUnreadable, match=f"of {len(payload)} bytes"):
        decode_customization(payload)


@pytest.mark.parametrize("size", range(len(ENCODED)))
def test_truncated_payload_is_refused(size: int) -> None:
    with pytest.raises(SnapshotUnreadable):
        decode_customization(ENCODED[:size])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\x01", b"\x02"),
        (b'"replace"', b'"replant"'),
        (b'"2026-01', b'"2026-13'),
        (b'"modified"', b'"modifier"'),
        (b"32", b"31"),
        (b"32", b"99"),
        (b"[[", b"[ "),
        (b"\x1f\x8b", b"\x1f\x8b\0"),
    ],
)
def test_corrupt_payload_is_refused_without_showing_it(before: bytes, after: bytes) -> None:
    with pytest.raises(SnapshotUnreadable) as raised:
        decode_customization(ENCODED.replace(before, after, 1))
    shown = "".join(traceback.format_exception(raised.value))
    assert "version" not in shown
    assert "a=1=2" not in shown


@pytest.mark.parametrize(
    "infra_env", [InfraEnv((), "4.20", Kind.MINIMAL_ISO, "aarch64"), InfraEnv((), None, None, None)]
)
def test_infra_env_is_decoded_as_it_was_encoded(infra_env: InfraEnv) -> None:
    assert decode_infra_env(encode_infra_env(infra_env)) == infra_env


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]", b"7", b'["4.20", "odd", null]'])
def test_infra_env_of_another_release_is_refused(payload: bytes) -> None:
    with pytest.raises(SnapshotUnreadable):
        decode_infra_env(payload)
