from __future__ import annotations

import pytest

from image_service.common.http.origins import public_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@store.example/a?signature=secret#secret", "https://store.example/a"),
        ("s3://bucket/a b", "s3://bucket/a b"),
        ("http://h:99999/a?secret", "http://h:99999/a"),
        ("http://user:secret@[::1/a?signature=secret", "a URL that is not valid"),
        ("http://user:secret@[zz]/a", "a URL that is not valid"),
        ("https://user:secret@a\u2100b/", "a URL that is not valid"),
    ],
)
def test_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert public_url(url) == shown
