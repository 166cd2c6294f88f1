from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

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

from image_service.errors import ConfigurationError
from image_service.settings import parsers
from image_service.settings.settings import Settings, documentation, variables

ROOT = Path(__file__).resolve().parents[2]
IMAGE = {
    "openshift_version": "4.19",
    "cpu_architecture": "x86_64",
    "version": "9.6.1-0",
    "url": "https://mirror.example/rhcos.iso",
}
SECRET = "top-secret"


@pytest.fixture
def complete(tmp_path: Path) -> dict[str, str]:
    """Set what must be set."""
    return {
        "ASSISTED_SERVICE_HOST": "assisted.example:8090",
        "OS_IMAGES": json.dumps([IMAGE]),
        "DATA_DIR": str(tmp_path),
    }


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


def test_the_reference_is_current() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == documentation(), "generate it with: make docs"


def test_the_reference_is_printed() -> None:
    command = [sys.executable, "-m", "image_service.settings.settings"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed == documentation()


def test_the_reference_names_every_variable_once() -> None:
    headings = [line for line in documentation().splitlines() if line.startswith("## ")]
    names = [name for variable in variables() for name in variable.names]
    assert [name for heading in headings for name in heading.split("`")[1::2]] == names
    assert len(set(names)) == len(names)


def test_defaults(complete: dict[str, str]) -> None:
    settings = Settings.from_environment(complete)

    assert settings.assisted_service_url == "http://assisted.example:8090"
    assert settings.base_url == "http://localhost:8080"
    assert settings.base_path == ""
    assert not settings.https
    assert (settings.upstream_timeout, settings.snapshot_ttl, settings.stall_timeout) == (30, 60, 120)
    assert (settings.handshake_timeout, settings.head_timeout, settings.idle_timeout) == (15, 5, 60)
    assert (settings.log_level, settings.log_ranges) == ("info", "summed")
    assert settings.standalone_listen == parsers.Listen("127.0.0.1", 8090)
    assert settings.os_images[0].file_name == "rhcos-full-iso-9.6.1-0-x86_64.iso"


def test_every_default_is_right_by_itself(tmp_path: Path) -> None:
    defaults = {variable.names[0]: variable.default for variable in variables() if variable.default}
    explicit = Settings.from_environment({**defaults, "DATA_DIR": str(tmp_path)}, standalone=True)
    assert explicit == Settings.from_environment({"DATA_DIR": str(tmp_path)}, standalone=True)


def test_standing_alone_requires_nothing(tmp_path: Path) -> None:
    settings = Settings.from_environment({"DATA_DIR": str(tmp_path)}, standalone=True)
    assert settings.os_images == ()
    assert settings.assisted_service_host is None


def test_an_empty_variable_is_not_set(complete: dict[str, str]) -> None:
    empty = {name: "" for variable in variables() for name in variable.names}
    assert Settings.from_environment({**empty, **complete}) == Settings.from_environment(complete)


def test_the_first_name_that_is_set_counts(complete: dict[str, str]) -> None:
    other = json.dumps([{**IMAGE, "version": "other"}])
    images = Settings.from_environment({**complete, "RHCOS_VERSIONS": other}).os_images
    assert [image.version for image in images] == ["9.6.1-0"]

    images = Settings.from_environment({**complete, "OS_IMAGES": "", "RHCOS_VERSIONS": other}).os_images
    assert [image.version for image in images] == ["other"]


def test_tells_all_faults_at_once(tmp_path: Path) -> None:
    told = faults(
        {
            "ASSISTED_SERVICE_SCHEME": "gopher",
            "ASSISTED_SERVICE_HOST": "a host",
            "DATA_DIR": str(tmp_path),
            "LISTEN_PORT": "65536",
            "STALL_TIMEOUT": "2m",
            "OS_IMAGES": json.dumps([{**IMAGE, "url": "nfs://x/y"}, {**IMAGE, "version": ".."}]),
            "HTTPS_KEY_FILE": str(tmp_path / "missing.pem"),
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
    ]
    assert len(told) == len(expected)
    for line in expected:
        assert any(found.startswith(line) for found in told), line


def test_requires_an_upstream_and_images(tmp_path: Path) -> None:
    assert faults({"DATA_DIR": str(tmp_path)}) == [
        "ASSISTED_SERVICE_HOST: is not set, but required",
        "OS_IMAGES or RHCOS_VERSIONS: is not set, but required",
    ]


def test_streams_may_take_the_place_of_images(complete: dict[str, str]) -> None:
    source = {"stream": "stable", "url": f"https://mirror/x?token={SECRET}", "architectures": ["x86_64"]}
    environ = {**complete, "OS_IMAGES": "", "COREOS_STREAMS": json.dumps([source])}
    settings = Settings.from_environment(environ)
    assert settings.os_images == ()
    assert [found.stream for found in settings.coreos_streams] == ["stable"]
    assert SECRET not in repr(settings)
    (told,) = faults({**environ, "COREOS_STREAMS": json.dumps([{**source, "keep": 0}])})
    assert told.startswith("COREOS_STREAMS: entry 0: keep must be")


def test_repeats_no_secret(complete: dict[str, str]) -> None:
    wrong = {
        "OS_IMAGES": json.dumps([{**IMAGE, "url": f"https://user:{SECRET}@mirror/x"}]),
        "OS_IMAGES_REQUEST_HEADERS": json.dumps({"Authorization": f"{SECRET}\n"}),
        "OS_IMAGES_REQUEST_QUERY_PARAMS": json.dumps([SECRET]),
        "STANDALONE_TOKEN": f"{SECRET} ",
        "ASSISTED_SERVICE_HOST": f"user:{SECRET}\n@host",
        "IMAGE_SERVICE_BASE_URL": f"https://user:{SECRET}/@host/",
    }
    told = faults({**complete, **wrong})
    assert {line.partition(":")[0].partition("=")[0] for line in told} == set(wrong)
    assert SECRET not in "\n".join(told)


def test_shows_no_secret(complete: dict[str, str]) -> None:
    secrets = {
        "OS_IMAGES": json.dumps([{**IMAGE, "url": f"https://mirror/x?signature={SECRET}"}]),
        "OS_IMAGES_REQUEST_HEADERS": json.dumps({"Authorization": SECRET}),
        "OS_IMAGES_REQUEST_QUERY_PARAMS": json.dumps({"key": SECRET}),
        "STANDALONE_TOKEN": SECRET,
    }
    settings = Settings.from_environment({**complete, **secrets})
    assert settings.standalone_token == SECRET
    assert settings.os_images_request_headers == {"Authorization": SECRET}
    assert settings.os_images_request_query_params == {"key": SECRET}
    assert SECRET not in repr(settings)
    assert SECRET not in repr(settings.os_images)


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
def test_takes_hosts_of_every_kind(complete: dict[str, str], text: str, url: str) -> None:
    settings = Settings.from_environment({**complete, "ASSISTED_SERVICE_HOST": text})
    assert settings.assisted_service_url == url


@pytest.mark.parametrize(
    "text", ["h:", "h:0", "h:65536", "h/path", "http://h", "[::1", "[h]", "[::1]80", "h h", "ü"]
)
def test_refuses_what_is_no_host(complete: dict[str, str], text: str) -> None:
    assert len(faults({**complete, "ASSISTED_SERVICE_HOST": text})) == 1


@given(
    st.one_of(st.ip_addresses(), st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)),
    st.integers(1, 65535),
)
def test_an_address_survives_its_url_form(host: object, port: int) -> None:
    for address in (parsers.Address(str(host), None), parsers.Address(str(host), port)):
        assert parsers.address(address.netloc) == address


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("0.0", 0), ("2.5", 2.5), ("1000000", 1_000_000)])
def test_a_delay_may_be_none(complete: dict[str, str], text: str, seconds: float) -> None:
    assert Settings.from_environment({**complete, "DRAIN_DELAY": text}).drain_delay == seconds


@pytest.mark.parametrize("text", ["-1", "-0.1", "nan", "inf", "1000001", " ", "5s"])
def test_refuses_what_is_no_delay(complete: dict[str, str], text: str) -> None:
    (fault,) = faults({**complete, "DRAIN_DELAY": text})
    assert "from 0 to 1000000" in fault


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e400", "1000001", "", " ", "1m", "0x10"])
def test_refuses_what_is_no_duration(complete: dict[str, str], text: str) -> None:
    if text:
        assert len(faults({**complete, "IDLE_TIMEOUT": text})) == 1


def test_takes_fractions_of_a_second(complete: dict[str, str]) -> None:
    assert Settings.from_environment({**complete, "IDLE_TIMEOUT": "0.25"}).idle_timeout == 0.25


@pytest.mark.parametrize(
    ("text", "url", "path"),
    [
        ("https://images.example", "https://images.example", ""),
        ("https://images.example/", "https://images.example", ""),
        ("http://[::1]:8080/a/b-c/", "http://[::1]:8080/a/b-c", "/a/b-c"),
    ],
)
def test_takes_the_base_url_apart(complete: dict[str, str], text: str, url: str, path: str) -> None:
    settings = Settings.from_environment({**complete, "IMAGE_SERVICE_BASE_URL": text})
    assert (settings.base_url, settings.base_path) == (url, path)


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
def test_refuses_what_is_no_base_url(complete: dict[str, str], text: str) -> None:
    assert len(faults({**complete, "IMAGE_SERVICE_BASE_URL": text})) == 1


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("LOG_LEVEL", "Warning", {"log_level": "warn"}),
        ("LOGLEVEL", "trace", {"log_level": "debug"}),
        ("INSECURE_SKIP_VERIFY", "T", {"insecure_skip_verify": True}),
        ("INSECURE_SKIP_VERIFY", "0", {"insecure_skip_verify": False}),
        ("LISTEN_PORT", "0", {"listen_port": 0}),
        ("LOG_RANGES", "EACH", {"log_ranges": "each"}),
        ("STANDALONE_LISTEN", "[::1]:0", {"standalone_listen": parsers.Listen("::1", 0)}),
        ("STANDALONE_LISTEN", "localhost:1", {"standalone_listen": parsers.Listen("127.0.0.1", 1)}),
        ("MAX_CONNECTIONS", "17", {"max_connections": 17}),
    ],
)
def test_reads(complete: dict[str, str], name: str, text: str, expected: dict[str, object]) -> None:
    settings = Settings.from_environment({**complete, name: text})
    assert {setting: getattr(settings, setting) for setting in expected} == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LOG_LEVEL", "loud"),
        ("INSECURE_SKIP_VERIFY", "yes"),
        ("LISTEN_PORT", "٨"),
        ("LISTEN_PORT", "80.0"),
        ("STANDALONE_LISTEN", "8090"),
        ("STANDALONE_LISTEN", "host:8090"),
        ("MAX_CONNECTIONS", "0"),
        ("OS_IMAGES_REQUEST_HEADERS", '{"a b": "c"}'),
        ("OS_IMAGES_REQUEST_HEADERS", '{"a": 1}'),
        ("OS_IMAGES_REQUEST_HEADERS", '{"a": "b\\r\\nc: d"}'),
        ("OS_IMAGES_REQUEST_QUERY_PARAMS", "a=b"),
    ],
)
def test_refuses(complete: dict[str, str], name: str, text: str) -> None:
    assert [line.partition(":")[0].partition("=")[0] for line in faults({**complete, name: text})] == [name]


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
def test_takes_origins(text: str, expected: tuple[str, ...]) -> None:
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
def test_refuses_what_is_no_origin(text: str) -> None:
    """What no browser ever sends would be allowed in vain."""
    with pytest.raises(ValueError, match="origin such as https://") as refusal:
        parsers.origins(f"https://a.example,{text},https://b.example,also wrong")
    assert [fault.partition(" must")[0] for fault in refusal.value.args] == [repr(text), "'also wrong'"]


# Files.


def test_takes_a_key_and_its_certificate(complete: dict[str, str], certificate: dict[str, str]) -> None:
    settings = Settings.from_environment({**complete, **certificate})
    assert settings.https
    assert settings.base_url == "https://localhost:8080"


@pytest.mark.parametrize("missing", ["HTTPS_KEY_FILE", "HTTPS_CERT_FILE"])
def test_wants_key_and_certificate_together(
    complete: dict[str, str], certificate: dict[str, str], missing: str
) -> None:
    del certificate[missing]
    assert faults({**complete, **certificate}) == [
        "HTTPS_KEY_FILE and HTTPS_CERT_FILE: one is set; both must be, or none"
    ]


def test_refuses_a_key_of_another_certificate(
    complete: dict[str, str], certificate: dict[str, str], tmp_path: Path
) -> None:
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(tmp_path / "key.pem")
    (told,) = faults({**complete, **certificate})
    assert told.endswith("not a pair: KEY_VALUES_MISMATCH")


def test_refuses_an_encrypted_key_without_asking(
    complete: dict[str, str], certificate: dict[str, str], tmp_path: Path
) -> None:
    key = load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    (tmp_path / "locked.pem").write_bytes(locked)
    (told,) = faults({**complete, **certificate, "HTTPS_KEY_FILE": str(tmp_path / "locked.pem")})
    assert "not a pair" in told


@pytest.mark.parametrize(
    "name",
    ["HTTPS_CA_FILE", "ASSISTED_SERVICE_API_TRUSTED_CA_FILE", "OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE"],
)
def test_wants_certificates_in_a_ca_file(complete: dict[str, str], tmp_path: Path, name: str) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("nothing of the kind")
    assert faults({**complete, name: str(path)}) == [
        f"{name}={str(path)!r}: must be a file of certificates in PEM form"
    ]

    trustme.CA().cert_pem.write_to_path(path)
    settings = Settings.from_environment({**complete, name: str(path)})
    assert path in {settings.assisted_service_ca_file, settings.os_image_download_ca_file}


def test_takes_a_data_dir_that_can_be_made(complete: dict[str, str], tmp_path: Path) -> None:
    settings = Settings.from_environment({**complete, "DATA_DIR": str(tmp_path / "a" / "b")})
    assert settings.data_dir == tmp_path / "a" / "b"
    assert not (tmp_path / "a").exists()


def test_refuses_a_data_dir_that_cannot_be_made(complete: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (told,) = faults({**complete, "DATA_DIR": str(tmp_path / "file" / "data")})
    assert told.endswith(f"must be a directory that this process may write; {tmp_path / 'file'} is not")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_refuses_a_data_dir_that_cannot_be_written(complete: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert len(faults({**complete, "DATA_DIR": str(tmp_path / "locked")})) == 1


# Limits.


def test_refuses_more_connections_than_descriptors(complete: dict[str, str]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("the number of open files is not limited here")
    (told,) = faults({**complete, "MAX_CONNECTIONS": str(hard)})
    assert told == f"MAX_CONNECTIONS='{hard}': must be a whole number, from 1 to {hard - 256}"


@pytest.mark.parametrize(("limit", "connections"), [(1000, 744), (9000, 8192), (100, 1)])
def test_expects_no_more_connections_than_descriptors(tmp_path: Path, limit: int, connections: int) -> None:
    """In a process of its own, because a hard limit never grows again."""
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        "from image_service.settings.settings import Settings\n"
        f"settings = Settings.from_environment({{'DATA_DIR': {str(tmp_path)!r}}}, standalone=True)\n"
        "print(settings.max_connections)"
    )
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert int(printed) == connections


# Standing alone.


@pytest.mark.parametrize("listen", ["0.0.0.0:8090", "[::]:8090", "192.0.2.1:8090"])
def test_listens_beyond_loopback_only_with_a_token(tmp_path: Path, listen: str) -> None:
    environ = {"DATA_DIR": str(tmp_path), "STANDALONE_LISTEN": listen}
    assert faults(environ, standalone=True) == [
        "STANDALONE_LISTEN is not on loopback; STANDALONE_TOKEN must be set then"
    ]
    settings = Settings.from_environment({**environ, "STANDALONE_TOKEN": SECRET}, standalone=True)
    assert not settings.standalone_listen.loopback


def test_asks_for_no_token_when_nothing_stands_alone(complete: dict[str, str]) -> None:
    Settings.from_environment({**complete, "STANDALONE_LISTEN": "0.0.0.0:8090"})
