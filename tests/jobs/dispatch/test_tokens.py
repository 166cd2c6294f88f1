from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import ImageServiceError, JobTokenMalformed, JobTokenUnknown
from image_service.jobs.dispatch.tokens import JobToken, JobTokens

TOKENS = JobTokens([b"a" * 32])
TOKEN = JobToken("8d4f47ee-ae57-42d2-93b5-f7e2bd6b8a09", 1, "org-1", b"engine")

job_tokens = st.builds(
    JobToken,
    job_id=st.uuids().map(str),
    attempt=st.integers(0, 2**32 - 1),
    tenant=st.text(max_size=40),
    engine_token=st.binary(max_size=300),
)


@given(job_tokens)
def test_a_token_is_a_path_segment_that_is_read_back(token: JobToken) -> None:
    text = TOKENS.write(token)
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert TOKENS.read(text) == token


@given(st.text(max_size=200))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises((JobTokenMalformed, JobTokenUnknown)):
        TOKENS.read(text)


@pytest.mark.parametrize("position", range(len(TOKENS.write(TOKEN))))
def test_a_changed_token_is_refused(position: int) -> None:
    packed = bytearray(urlsafe_b64decode(TOKENS.write(TOKEN) + "=="))
    packed[position % len(packed)] ^= 1
    with pytest.raises(ImageServiceError):
        TOKENS.read(urlsafe_b64encode(packed).rstrip(b"=").decode())


def test_the_fields_of_two_tokens_cannot_be_mixed() -> None:
    longer = attrs.evolve(TOKEN, tenant="org-1e", engine_token=b"ngine")
    assert TOKENS.write(longer) != TOKENS.write(TOKEN)
    assert TOKENS.read(TOKENS.write(longer)) == longer


def test_a_secret_may_be_rotated() -> None:
    old, new = b"a" * 32, b"b" * 32
    assert JobTokens([new, old]).read(JobTokens([old]).write(TOKEN)) == TOKEN
    with pytest.raises(JobTokenUnknown):
        JobTokens([new]).read(JobTokens([old]).write(TOKEN))


def test_a_token_is_not_shown() -> None:
    assert "engine" not in repr(TOKEN).replace("engine_token", "")
