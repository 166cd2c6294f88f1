from __future__ import annotations

import base64
import json
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.server.http import redaction
from image_service.server.http.redaction import HIDDEN, MAX_DETAIL, MAX_TARGET, redact_detail, redact_target

ID = "5a3b1e00-1111-4222-8333-123456789012"


def jwt(claims: dict[str, str], signature: str = "s1gnature") -> str:
    header, payload = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "ES256"}, claims)
    )
    return f"{header}.{payload}.{signature}"


TOKEN = jwt({"infra_env_id": ID})


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/", "/"),
        ("/nothing/at/all", "/nothing/at/all"),
        (f"/byid/{ID}/4.20/x86_64/ful.iso", None),
        (f"/byid/{ID}/4.20.0-0.nightly-2026-01-02-123456/x86_64/full.iso", None),
        (f"/images/{ID}?type=full-iso&version=4.20&arch=x86_64", None),
        ("/boot-artifacts/rootfs?version=4.20", None),
        ("/streams/stable/40.20240101.3.0/x86_64/fedora-coreos-40.20240101.3.0-live.x86_64.iso", None),
        (f"/bytoken/{TOKEN}/4.20/x86_64/full.iso", "/bytoken/***/4.20/x86_64/full.iso"),
        ("/byapikey/short/4.20/x86_64/ful.iso", "/byapikey/***/4.20/x86_64/ful.iso"),
        ("/base/bytoken/short/4.20/x86_64/full.iso", "/base/bytoken/***/4.20/x86_64/full.iso"),
        ("/bytoken/short/4.20/full.iso", "/bytoken/***"),
        ("/bytoken/half/half/4.20/x86_64/full.iso", "/bytoken/***"),
        ("//bytoken//short/x/full.iso", "//bytoken/***/short/x/full.iso"),
        ("/s/abcdefghijklmnop.iso", "/s/***"),
        ("/base/s/abcdefghijklmnop.ipxe.sha256?x", "/base/s/***?***"),
        ("/S/abcdefghijklmnop/x/y/z", "/S/***/x/y/z"),
        (f"/bytokn/{TOKEN}/4.20/x86_64/full.iso", "/bytokn/***/4.20/x86_64/full.iso"),
        (f"/images/{ID}?image_token=short&version=4", f"/images/{ID}?***&version=4"),
        (f"/images/{ID}?version=4&api_key=short", f"/images/{ID}?version=4&***"),
        (f"/images/{ID}?version={TOKEN}&short", f"/images/{ID}?version=***&***"),
        ("/full.iso&image_token=short", "/full.iso***"),
        ("/full.iso%3Fapi_key%3Dshort/rest", "/full.iso***/***"),
        ("/full.iso%20", "/full.iso***"),
        ("/full.iso%250a", "/full.iso***"),
        ("/http:/user:short@host/x", "/http***/***/x"),
        (f"/{'a' * 65}/b", "/***/b"),
        (f"/{'a' * 33}/b", "/***/b"),
        ("*", "***"),
    ],
)
def test_target_is_shown_without_credentials(target: str, shown: str | None) -> None:
    assert redact_target(target) == (target if shown is None else shown)


_SECRETS = st.text("ABCXYZ", min_size=12, max_size=300)
_CLAIMS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
_TOKENS = st.builds(jwt, _CLAIMS, _SECRETS)
_PATHS = st.lists(st.text("abc./%-_~", max_size=10), max_size=5).map("/".join)
_PARAMETERS = st.sampled_from(["image_token", "api_key", "token", "x", ""])


@given(_SECRETS, _PATHS, _PATHS, st.sampled_from(["bytoken", "byapikey", "ByToken", "by%74oken", "tokens"]))
def test_secret_behind_its_route_is_hidden(secret: str, before: str, behind: str, route: str) -> None:
    shown = redact_target(f"/{before}/{route}/{secret}/{behind}")
    assert secret[:12] not in shown


@given(_SECRETS, _PATHS, _PARAMETERS, st.sampled_from(["type=full", "version=4", "a=b"]))
def test_secret_in_the_query_is_hidden(secret: str, path: str, name: str, other: str) -> None:
    for query in (f"{name}={secret}&{other}", f"{other}&{name}={secret}", f"{other}&{secret}", secret):
        assert secret[:12] not in redact_target(f"/{path}?{query}")


@given(_TOKENS, _PATHS, _PATHS)
def test_token_is_hidden_wherever_it_is(token: str, before: str, behind: str) -> None:
    signature = token.rpartition(".")[2]
    for target in (f"/{before}/{token}/{behind}", f"/{before}?version={token}", f"/{before}{token}"):
        shown = redact_target(target)
        assert "eyJ" not in shown
        assert signature not in shown


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=9000))
def test_any_target_is_short_and_printable(target: str) -> None:
    shown = redact_target(f"/{target}")
    assert len(shown) <= MAX_TARGET
    assert shown.isascii()
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("detail", "shown"),
    [
        ("not found; the files are full.iso, minimal.iso", None),
        (f"assisted-service answered 401 for Ignition config of infra-env {ID}", None),
        (f"there is no {TOKEN}; there is 4.20", "there is no ***; there is 4.20"),
        (f"token={TOKEN}", "token=***"),
        (f"there is no {'a' * 65}.", "there is no ***"),
        ("SHA-256 " + "0f" * 32, None),
        ("cannot fetch https://mirror.example.com/a/very/long/path/of/directories/with/an.iso: no", None),
        ("https://user:s3cr3t@mirror.test/an.iso: no", "https://***mirror.test/an.iso: no"),
        ("https://mirror.test/an.iso?sig=s3cr3t: no", "https://mirror.test/an.iso*** no"),
        ("does it speak HTTP?", None),
        ("line\nend\x1b[1m\u2028\ud800", "line\\nend\\x1b[1m\\u2028\\ud800"),
        ("ä is a letter", None),
    ],
)
def test_detail_is_shown_without_credentials(detail: str, shown: str | None) -> None:
    assert redact_detail(detail) == (detail if shown is None else shown)


@given(st.text())
def test_any_detail_is_short_and_printable(detail: str) -> None:
    shown = redact_detail(detail)
    assert len(shown) <= MAX_DETAIL
    assert shown.isprintable()


def test_long_target_and_detail_end_in_dots() -> None:
    assert redact_target("/a.b-c" * 90).endswith((HIDDEN, "..."))
    assert redact_detail("word " * 1000) == "word " * 119 + "wo..."


@pytest.mark.parametrize(
    "target", ["/" + "%65w-" * 1600, "/x?type=" + "%65" * 2600, f"/{'%65w-' * 150}" * 10]
)
def test_targets_full_of_escapes_are_decoded_once_at_most(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    decoded: list[str] = []

    def decode(text: str) -> str:
        decoded.append(text)
        return unquote(text)

    monkeypatch.setattr(redaction, "unquote", decode)
    redact_target(target)
    assert sum(map(len, decoded)) <= len(target)
    assert max(map(len, decoded)) < 1000, "a longer one is not shown"


def test_nothing_is_shown_behind_a_segment_that_is_too_long_to_be_decoded() -> None:
    assert redact_target(f"/byid/{'a' * 800}token/s3cr3t/4.18/x86_64/full.iso") == "/byid/***/***"
