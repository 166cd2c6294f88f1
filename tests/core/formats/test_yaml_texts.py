from __future__ import annotations

import pytest

from image_service.core.errors import FormatError
from image_service.core.formats.documents.yaml_texts import MAX_NODES, parse_yaml


def test_scalars_stay_texts() -> None:
    content = "{mac: 52:54:00:12:34:56, flag: yes, day: 2026-01-01, none: , octal: 0o17, list: [1.0]}"
    assert parse_yaml(content) == {
        "mac": "52:54:00:12:34:56",
        "flag": "yes",
        "day": "2026-01-01",
        "none": "",
        "octal": "0o17",
        "list": ["1.0"],
    }
    assert parse_yaml(b"") is None


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("a: [\n  s3cret: }", "line 2, column 11 is not YAML"),
        ("a\0s3cret", "it is not YAML"),
        (b"\xff\xfe\xff", "it is not YAML"),
        ("[" * 100_000, "it is not YAML"),
        ("- s3cret\n" * MAX_NODES, f"it has more than {MAX_NODES} nodes"),
    ],
)
def test_what_is_not_read_has_its_place_and_no_content(content: str | bytes, fault: str) -> None:
    with pytest.raises(FormatError) as refusal:
        parse_yaml(content)
    assert fault in refusal.value.detail
    assert "s3cret" not in refusal.value.detail
