from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from ipaddress import ip_address
from operator import attrgetter
from pathlib import Path
from socket import AF_INET, AF_INET6, AddressFamily

import attrs
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import given
from hypothesis import strategies as st

from image_service.cli.settings_reference import render_reference
from image_service.core.errors import ConfigurationError
from image_service.settings import network, parsers
from image_service.settings.jobs.role import JobsRoleSettings
from image_service.settings.settings import Settings, groups, variables
from image_service.settings.variables import groups_of, variables_of
from tests.settings.conftest import IMAGE, SECRET

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    """Make a key and a certificate for it."""
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    return {"HTTPS_KEY_FILE": str(tmp_path / "key.pem"), "HTTPS_CERT_FILE": str(tmp_path / "cert.pem")}


def faults(environ: dict[str, str], *, standalone: bool = False) -> list[str]:
    with pytest.raises(ConfigurationError) as refusal:
        Settings.from_environment(environ, standalone=standalone)
    return refusal.value.detail.splitlines()


def test_reference_page_is_current() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == render_reference(), (
        "generate it with: make docs"
    )


def test_reference_module_prints_the_page() -> None:
    command = [sys.executable, "-m", "image_service.cli.settings_reference"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed == render_reference()


def test_reference_page_names_every_variable_once() -> None:
    headings = [line for line in render_reference().splitlines() if line.startswith("### ")]
    of_jobs = [variable for _, group in groups_of(JobsRoleSettings) for variable in variables_of(group)]
    every = dict.fromkeys(variable.names for variable in (*variables(), *of_jobs))
    names = [name for names in every for name in names]
    assert [name for heading in headings for name in heading.split("`")[1::2]] == names
    assert len(set(names)) == len(names)


def test_groups_have_at_most_16_fields() -> None:
    assert all(len(attrs.fields(group)) <= 16 for _, group in groups())


def test_defaults(complete: dict[str, str]) -> None:
    settings = Settings.from_environment(complete)

    assert settings.upstream.url == "http://assisted.example:8090"
    assert settings.base_url(8080) == "http://localhost:8080"
    assert settings.listen.base_path == ""
    assert not settings.tls.is_enabled
    assert (
        settings.upstream.timeout_seconds,
        settings.snapshots.ttl_seconds,
        settings.limits.stall_seconds,
    ) == (30, 60, 120)
    assert (
        settings.limits.handshake_seconds,
        settings.limits.head_seconds,
        settings.limits.idle_seconds,
    ) == (15, 5, 60)
    assert (settings.log.level, settings.log.ranges) == ("info", "summed")
    assert settings.standalone.listen == parsers.ListenAddress("127.0.0.1", 8090)
    assert settings.catalog.images[0].file_name == "rhcos-full-iso-9.6.1-0-x86_64.iso"


def test_every_default_is_a_valid_text(tmp_path: Path) -> None:
    defaults = {variable.names[0]: variable.default for variable in variables() if variable.default}
    explicit = Settings.from_environment({**defaults, "DATA_DIR": str(tmp_path)}, standalone=True)
    assert explicit == Settings.from_environment({"DATA_DIR": str(tmp_path)}, standalone=True)


def test_standalone_mode_requires_no_variable(tmp_path: Path) -> None:
    settings = Settings.from_environment({"DATA_DIR": str(tmp_path)}, standalone=True)
    assert settings.catalog.images == ()
    assert settings.upstream.host is None


def test_standalone_mode_with_an_upstream_is_refused_beside_other_faults(complete: dict[str, str]) -> None:
    together, other = sorted(faults({**complete, "LISTEN_PORT": "x"}, standalone=True))
    assert together.startswith("--standalone and ASSISTED_SERVICE_HOST: both are given")
    assert other.startswith("LISTEN_PORT='x'")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://localhost:8080"),
        ("::1", "http://localhost:8080"),
        ("127.0.0.2", "http://127.0.0.2:8080"),
        ("fd00::1", "http://[fd00::1]:8080"),
    ],
)
def test_listen_address_is_in_the_base_url(complete: dict[str, str], text: str, url: str) -> None:
    settings = Settings.from_environment({**complete, "LISTEN_ADDRESS": text})
    assert settings.listen.address == (ip_address(text) if text else None)
    assert settings.base_url(8080) == url


@pytest.mark.parametrize(
    ("text", "routes", "url"),
    [
        ("0.0.0.0", {AF_INET: "198.51.100.7", AF_INET6: "fd00::7"}, "http://198.51.100.7:8080"),  # noqa: S104 - none listens
        ("0.0.0.0", {AF_INET6: "fd00::7"}, "http://localhost:8080"),  # noqa: S104 - nothing listens
        ("::", {AF_INET: "198.51.100.7", AF_INET6: "fd00::7"}, "http://198.51.100.7:8080"),
        ("::", {AF_INET6: "fd00::7"}, "http://[fd00::7]:8080"),
        ("::", {}, "http://localhost:8080"),
    ],
)
def test_address_of_the_default_route_is_that_of_all_addresses(
    complete: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    routes: dict[AddressFamily, str],
    url: str,
) -> None:
    monkeypatch.setattr(network, "find_default_address", routes.get)
    settings = Settings.from_environment({**complete, "LISTEN_ADDRESS": text})
    assert settings.base_url(8080) == url
    named = Settings.from_environment(
        {**complete, "LISTEN_ADDRESS": text, "IMAGE_SERVICE_BASE_URL": "http://h"}
    )
    assert named.base_url(8080) == "http://h"


@pytest.mark.parametrize(
    ("text", "address"), [("", "127.0.0.1"), ("::1", "::1"), ("::ffff:127.0.0.1", "127.0.0.1")]
)
def test_standalone_mode_listens_on_loopback_by_default(tmp_path: Path, text: str, address: str) -> None:
    settings = Settings.from_environment({"DATA_DIR": str(tmp_path), "LISTEN_ADDRESS": text}, standalone=True)
    assert settings.listen.address == ip_address(address)
    assert settings.base_url(8080) == "http://localhost:8080"


def test_empty_variable_is_not_set(complete: dict[str, str]) -> None:
    empty = {name: "" for variable in variables() for name in variable.names}
    assert Settings.from_environment({**empty, **complete}) == Settings.from_environment(complete)


def test_first_name_that_is_set_is_used(complete: dict[str, str]) -> None:
    other = json.dumps([{**IMAGE, "version": "other"}])
    images = Settings.from_environment({**complete, "RHCOS_VERSIONS": other}).catalog.images
    assert [image.version for image in images] == ["9.6.1-0"]

    images = Settings.from_environment({**complete, "OS_IMAGES": "", "RHCOS_VERSIONS": other}).catalog.images
    assert [image.version for image in images] == ["other"]


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    found = faults(
        {
            "ASSISTED_SERVICE_SCHEME": "gopher",
            "ASSISTED_SERVICE_HOST": "a host",
            "DATA_DIR": str(tmp_path),
            "LISTEN_PORT": "65536",
            "STALL_TIMEOUT": "2m",
            "OS_IMAGES": json.dumps([{**IMAGE, "url": "nfs://x/y"}, {**IMAGE, "version": ".."}]),
            "HTTPS_KEY_FILE": str(tmp_path / "missing.pem"),
            "DOWNLOAD_RETRY_MIN": "600",
        }
    )
    expected = [
        "ASSISTED_SERVICE_SCHEME='gopher': must be one of http, https",
        "ASSISTED_SERVICE_HOST='a host': must be a host name or IP address",
        "LISTEN_PORT='65536': must be a whole number, from 0 to 65535",
        f"HTTPS_KEY_FILE='{tmp_path}/missing.pem': must be a readable file: No such file or directory",
        "STALL_TIMEOUT='2m': must be a number of seconds, more than 0 and at most",
        "OS_IMAGES: entry 0: url must be",
        "OS_IMAGES: entry 1: version must be",
        "HTTPS_KEY_FILE and HTTPS_CERT_FILE: one is set; both must be, or none",
        "DOWNLOAD_RETRY_MIN=600: DOWNLOAD_RETRY_MAX=300 is less than that",
    ]
    assert len(found) == len(expected)
    for line in expected:
        assert any(fault.startswith(line) for fault in found), line


def test_missing_upstream_and_images_are_reported(tmp_path: Path) -> None:
    assert faults({"DATA_DIR": str(tmp_path)}) == [
        "ASSISTED_SERVICE_HOST: is not set, but required",
        "OS_IMAGES or RHCOS_VERSIONS: is not set, but required",
    ]


def test_streams_replace_required_images(complete: dict[str, str]) -> None:
    source = {"stream": "stable", "url": f"https://mirror/x?token={SECRET}", "architectures": ["x86_64"]}
    environ = {**complete, "OS_IMAGES": "", "COREOS_STREAMS": json.dumps([source])}
    settings = Settings.from_environment(environ)
    assert settings.catalog.images == ()
    assert [found.stream for found in settings.streams.sources] == ["stable"]
    assert SECRET not in repr(settings)
    (found,) = faults({**environ, "COREOS_STREAMS": json.dumps([{**source, "keep": 0}])})
    assert found.startswith("COREOS_STREAMS: entry 0: keep must be")


def test_faults_repeat_no_secret(complete: dict[str, str]) -> None:
    wrong = {
        "OS_IMAGES": json.dumps([{**IMAGE, "url": f"https://user:{SECRET}@mirror/x"}]),
        "OS_IMAGES_REQUEST_HEADERS": json.dumps({"Authorization": f"{SECRET}\n"}),
        "OS_IMAGES_REQUEST_QUERY_PARAMS": json.dumps([SECRET]),
        "STANDALONE_TOKEN": f"{SECRET} ",
        "ASSISTED_SERVICE_HOST": f"user:{SECRET}\n@host",
        "IMAGE_SERVICE_BASE_URL": f"https://user:{SECRET}/@host/",
    }
    found = faults({**complete, **wrong})
    assert {line.partition(":")[0].partition("=")[0] for line in found} == set(wrong)
    assert SECRET not in "\n".join(found)


def test_repr_shows_no_secret(complete: dict[str, str]) -> None:
    secrets = {
        "OS_IMAGES": json.dumps([{**IMAGE, "url": f"https://mirror/x?signature={SECRET}"}]),
        "OS_IMAGES_REQUEST_HEADERS": json.dumps({"Authorization": SECRET}),
        "OS_IMAGES_REQUEST_QUERY_PARAMS": json.dumps({"key": SECRET}),
        "STANDALONE_TOKEN": SECRET,
    }
    settings = Settings.from_environment({**complete, **secrets})
    assert settings.standalone.token == SECRET
    assert settings.download.headers == {"Authorization": SECRET}
    assert settings.download.query_params == {"key": SECRET}
    assert SECRET not in repr(settings)
    assert SECRET not in repr(settings.catalog.images)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("host", "http://host"),
        ("host:80", "http://host:80"),
        ("10.0.0.1:80", "http://10.0.0.1:80"),
        ("fd00::1", "http://[fd00::1]"),
        ("[fd00::1]", "http://[fd00::1]"),
        ("[FD00:0::1]:80", "http://[fd00::1]:80"),
    ],
)
def test_host_is_accepted(complete: dict[str, str], text: str, url: str) -> None:
    settings = Settings.from_environment({**complete, "ASSISTED_SERVICE_HOST": text})
    assert settings.upstream.url == url


@pytest.mark.parametrize(
    "text", ["h:", "h:0", "h:65536", "h/path", "http://h", "[::1", "[h]", "[::1]80", "h h", "ü"]
)
def test_malformed_host_is_refused(complete: dict[str, str], text: str) -> None:
    assert len(faults({**complete, "ASSISTED_SERVICE_HOST": text})) == 1


@given(
    st.one_of(
        st.ip_addresses(), st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z0-9-]{1,9}){0,2}", fullmatch=True)
    ),
    st.integers(1, 65535),
)
def test_address_round_trips_through_its_netloc(host: object, port: int) -> None:
    for address in (parsers.Address(str(host), None), parsers.Address(str(host), port)):
        assert parsers.address(address.netloc) == address


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("0.0", 0), ("2.5", 2.5), ("1000000", 1_000_000)])
def test_delay_of_zero_is_accepted(complete: dict[str, str], text: str, seconds: float) -> None:
    assert Settings.from_environment({**complete, "DRAIN_DELAY": text}).process.drain_delay_seconds == seconds


@pytest.mark.parametrize("text", ["-1", "-0.1", "nan", "inf", "1000001", " ", "5s"])
def test_malformed_delay_is_refused(complete: dict[str, str], text: str) -> None:
    (fault,) = faults({**complete, "DRAIN_DELAY": text})
    assert "from 0 to 1000000" in fault


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e400", "1000001", "", " ", "1m", "0x10"])
def test_malformed_duration_is_refused(complete: dict[str, str], text: str) -> None:
    if text:
        assert len(faults({**complete, "IDLE_TIMEOUT": text})) == 1


def test_durations_accept_fractions_of_a_second(complete: dict[str, str]) -> None:
    assert Settings.from_environment({**complete, "IDLE_TIMEOUT": "0.25"}).limits.idle_seconds == 0.25


@pytest.mark.parametrize(
    ("text", "url", "path"),
    [
        ("https://images.example", "https://images.example", ""),
        ("https://images.example/", "https://images.example", ""),
        ("http://[::1]:8080/a/b-c/", "http://[::1]:8080/a/b-c", "/a/b-c"),
    ],
)
def test_base_url_and_its_path_are_parsed(complete: dict[str, str], text: str, url: str, path: str) -> None:
    settings = Settings.from_environment({**complete, "IMAGE_SERVICE_BASE_URL": text})
    assert (settings.base_url(8080), settings.listen.base_path) == (url, path)


@pytest.mark.parametrize(
    "text",
    [
        "images.example",
        "ftp://h/",
        "http:///x",
        "http://h/?",
        "http://h/#",
        "http://h//x",
        "http://h/%41",
        "http://[x",
    ],
)
def test_malformed_base_url_is_refused(complete: dict[str, str], text: str) -> None:
    assert len(faults({**complete, "IMAGE_SERVICE_BASE_URL": text})) == 1


@pytest.mark.parametrize(
    ("name", "text", "field", "expected"),
    [
        ("LOG_LEVEL", "Warning", "log.level", "warn"),
        ("LOGLEVEL", "trace", "log.level", "debug"),
        ("ASSISTED_SERVICE_INSECURE_SKIP_VERIFY", "T", "upstream.insecure", True),
        ("INSECURE_SKIP_VERIFY", "T", "upstream.insecure", False),
        ("ASSISTED_SERVICE_INSECURE_SKIP_VERIFY", "T", "download.insecure", False),
        ("INSECURE_SKIP_VERIFY", "T", "download.insecure", True),
        ("ASSISTED_SERVICE_INSECURE_SKIP_VERIFY", "0", "upstream.insecure", False),
        ("LISTEN_PORT", "0", "listen.port", 0),
        ("LOG_RANGES", "EACH", "log.ranges", "each"),
        ("STANDALONE_LISTEN", "[::1]:0", "standalone.listen", parsers.ListenAddress("::1", 0)),
        ("STANDALONE_LISTEN", "localhost:1", "standalone.listen", parsers.ListenAddress("127.0.0.1", 1)),
        ("MAX_CONNECTIONS", "17", "limits.connections", 17),
    ],
)
def test_text_of_a_variable_is_parsed(
    complete: dict[str, str], name: str, text: str, field: str, expected: object
) -> None:
    settings = Settings.from_environment({**complete, name: text})
    assert attrgetter(field)(settings) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LOG_LEVEL", "loud"),
        ("INSECURE_SKIP_VERIFY", "yes"),
        ("LISTEN_PORT", "٨"),
        ("LISTEN_PORT", "80.0"),
        ("LISTEN_ADDRESS", "localhost"),
        ("LISTEN_ADDRESS", "[::1]"),
        ("LISTEN_ADDRESS", "127.0.0.1:80"),
        ("STANDALONE_LISTEN", "8090"),
        ("STANDALONE_LISTEN", "host:8090"),
        ("MAX_CONNECTIONS", "0"),
        ("OS_IMAGES_REQUEST_HEADERS", '{"a b": "c"}'),
        ("OS_IMAGES_REQUEST_HEADERS", '{"a": 1}'),
        ("OS_IMAGES_REQUEST_HEADERS", '{"a": "b\\r\\nc: d"}'),
        ("OS_IMAGES_REQUEST_QUERY_PARAMS", "a=b"),
    ],
)
def test_malformed_text_is_refused(complete: dict[str, str], name: str, text: str) -> None:
    assert [line.partition(":")[0].partition("=")[0] for line in faults({**complete, name: text})] == [name]


def test_limits_are_divided_among_workers_with_at_least_one_call_each(complete: dict[str, str]) -> None:
    limits = {"WORKERS": "5", "UPSTREAM_CONCURRENCY": "3", "SNAPSHOT_CACHE_BYTES": "1000"}
    settings = Settings.from_environment({**complete, **limits})
    part = settings.of_one_process()
    assert (part.upstream.concurrency, part.snapshots.cache_bytes) == (1, 200)
    assert part.limits == settings.limits


# Origins.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://console.example.com", ("https://console.example.com",)),
        ("https://a.example, https://b.example", ("https://a.example", "https://b.example")),
        (" https://a.example ,\n\thttps://b.example\n", ("https://a.example", "https://b.example")),
        ("HTTPS://Console.Example", ("https://console.example",)),
        ("https://a.example,,", ("https://a.example",)),
        ("http://localhost:3000,http://[::1]:3000", ("http://localhost:3000", "http://[::1]:3000")),
        ("chrome-extension://abc", ("chrome-extension://abc",)),
        ("*", ("*",)),
        (
            "https://*.example,*.example,http://localhost:*",
            ("https://*.example", "*.example", "http://localhost:*"),
        ),
        ("*://a.example,http*://a.example,https://a*", ("*://a.example", "http*://a.example", "https://a*")),
        (",", ()),
    ],
)
def test_origins_are_parsed(text: str, expected: tuple[str, ...]) -> None:
    assert parsers.origins(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "example.com",
        "https://",
        "https://a.example/",
        "https://a.example/path",
        "https://user@a.example",
        "https://*.*.example",
        "**",
        "https://a.example https://b.example",
        "https://a.example;https://b.example",
        "https://bücher.example",
        "https://a.example:",
        "null",
        "'*'",
    ],
)
def test_malformed_origin_is_refused(text: str) -> None:
    """What no browser ever sends would be allowed in vain."""
    with pytest.raises(ValueError, match="origin such as https://") as refusal:
        parsers.origins(f"https://a.example,{text},https://b.example,also wrong")
    assert [fault.partition(" must")[0] for fault in refusal.value.args] == [repr(text), "'also wrong'"]


# Files.


def test_key_and_certificate_enable_tls(complete: dict[str, str], certificate: dict[str, str]) -> None:
    settings = Settings.from_environment({**complete, **certificate})
    assert settings.tls.is_enabled
    assert settings.base_url(8080) == "https://localhost:8080"


@pytest.mark.parametrize("missing", ["HTTPS_KEY_FILE", "HTTPS_CERT_FILE"])
def test_key_without_certificate_is_refused_and_vice_versa(
    complete: dict[str, str], certificate: dict[str, str], missing: str
) -> None:
    del certificate[missing]
    assert faults({**complete, **certificate}) == [
        "HTTPS_KEY_FILE and HTTPS_CERT_FILE: one is set; both must be, or none"
    ]


def test_key_of_another_certificate_is_refused(
    complete: dict[str, str], certificate: dict[str, str], tmp_path: Path
) -> None:
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(tmp_path / "key.pem")
    (found,) = faults({**complete, **certificate})
    assert found.startswith("HTTPS_KEY_FILE and HTTPS_CERT_FILE: ")
    assert found.endswith("are not a pair: the certificate is for another key")


def test_encrypted_key_is_refused_without_a_prompt(
    complete: dict[str, str], certificate: dict[str, str], tmp_path: Path
) -> None:
    key = load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    (tmp_path / "locked.pem").write_bytes(locked)
    (found,) = faults({**complete, **certificate, "HTTPS_KEY_FILE": str(tmp_path / "locked.pem")})
    assert "locked.pem needs a passphrase, and the service has none" in found


def test_exchanged_key_and_certificate_are_named(
    complete: dict[str, str], certificate: dict[str, str]
) -> None:
    key, chain = certificate.values()
    (found,) = faults({**complete, "HTTPS_KEY_FILE": chain, "HTTPS_CERT_FILE": key})
    assert found.endswith(": exchange them")


def test_damaged_certificate_of_an_authority_is_refused(
    complete: dict[str, str], certificate: dict[str, str], tmp_path: Path
) -> None:
    with (tmp_path / "cert.pem").open("a") as chain:
        chain.write("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    (found,) = faults({**complete, **certificate})
    assert "HTTPS_KEY_FILE and HTTPS_CERT_FILE: OpenSSL refuses them: " in found


@pytest.mark.parametrize("content", [b"", b"root:x:0:0:root:/root:/bin/bash\n", b"\xc5secret key"])
def test_file_that_is_no_key_ring_is_refused(
    complete: dict[str, str], tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    (found,) = faults({**complete, "SIGNING_KEYS": str(path)})
    assert found.startswith(f"SIGNING_KEYS={str(path)!r}: must be an OpenPGP key ring: ")


@pytest.mark.parametrize(
    "name",
    ["HTTPS_CA_FILE", "ASSISTED_SERVICE_API_TRUSTED_CA_FILE", "OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE"],
)
def test_ca_file_without_certificates_is_refused(complete: dict[str, str], tmp_path: Path, name: str) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("nothing of the kind")
    assert faults({**complete, name: str(path)}) == [
        f"{name}={str(path)!r}: must be a file of certificates in PEM form"
    ]

    trustme.CA().cert_pem.write_to_path(path)
    settings = Settings.from_environment({**complete, name: str(path)})
    assert path in {settings.upstream.ca_file, settings.download.ca_file}


def test_data_dir_that_can_be_created_is_accepted(complete: dict[str, str], tmp_path: Path) -> None:
    settings = Settings.from_environment({**complete, "DATA_DIR": str(tmp_path / "a" / "b")})
    assert settings.storage.data_dir == tmp_path / "a" / "b"
    assert not (tmp_path / "a").exists()


def test_data_dir_that_cannot_be_created_is_refused(complete: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (found,) = faults({**complete, "DATA_DIR": str(tmp_path / "file" / "data")})
    assert found.endswith(f"must be a writable directory; {tmp_path / 'file'} is not a directory")


def test_data_dir_that_is_a_broken_link_is_refused(complete: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing")
    (found,) = faults({**complete, "DATA_DIR": str(tmp_path / "link")})
    assert found.endswith(f"must be a writable directory; {tmp_path / 'link'} is not a directory")


def test_data_dir_of_another_user_is_refused_with_both_users(tmp_path: Path) -> None:
    """In a process of another user, if this one may write everywhere."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    program = (
        "import os, sys\n"
        "from image_service.settings import parsers\n"
        "nobody = 65534\n"
        "if os.geteuid() == 0: os.setgroups([]), os.setgid(nobody), os.setuid(nobody)\n"
        "try: parsers.writable_directory(sys.argv[1])\n"
        "except ValueError as error: print(os.geteuid(), error)"
    )
    for path in (locked, locked / "data"):
        command = [sys.executable, "-c", program, str(path)]
        printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        user = printed.partition(" ")[0]
        assert printed.strip() in (
            f"{user} must be a writable directory; {where} belongs to uid {where.stat().st_uid} and gid"
            f" {where.stat().st_gid} with mode {where.stat().st_mode & 0o7777:04o}; uid {user} may not write"
            " to it"
            for where in (locked, *locked.parents)  # another user may not even search those above
        )


def test_read_only_file_system_is_named(
    complete: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = os.statvfs_result((4096, 4096, 1, 1, 1, 1, 1, 1, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: flags)
    (found,) = faults(complete)
    assert found.endswith(f"must be a writable directory; {tmp_path} is on a read-only file system")


# Limits.


def test_more_connections_than_descriptors_are_refused(complete: dict[str, str]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("the number of open files is not limited here")
    (found,) = faults({**complete, "MAX_CONNECTIONS": str(hard)})
    assert found.startswith(
        f"MAX_CONNECTIONS='{hard}': must be at most {hard - 256}: the hard limit of open files (ulimit -Hn;"
    )


@pytest.mark.parametrize(("limit", "connections"), [(1000, 744), (9000, 8192), (100, 1)])
def test_default_connections_leave_descriptors_for_other_uses(
    tmp_path: Path, limit: int, connections: int
) -> None:
    """In a process of its own, because a hard limit never grows again."""
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        "from image_service.settings.settings import Settings\n"
        f"settings = Settings.from_environment({{'DATA_DIR': {str(tmp_path)!r}}}, standalone=True)\n"
        "print(settings.limits.connections)"
    )
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert int(printed) == connections


# Standing alone.


@pytest.mark.parametrize("listen", ["0.0.0.0:8090", "[::]:8090", "192.0.2.1:8090"])
def test_standalone_api_beyond_loopback_requires_a_token(tmp_path: Path, listen: str) -> None:
    environ = {"DATA_DIR": str(tmp_path), "STANDALONE_LISTEN": listen}
    assert faults(environ, standalone=True) == [
        "STANDALONE_LISTEN is not on loopback; STANDALONE_TOKEN must be set then"
    ]
    settings = Settings.from_environment({**environ, "STANDALONE_TOKEN": SECRET}, standalone=True)
    assert not settings.standalone.listen.is_loopback


def test_token_is_not_required_without_standalone_mode(complete: dict[str, str]) -> None:
    Settings.from_environment({**complete, "STANDALONE_LISTEN": "0.0.0.0:8090"})
