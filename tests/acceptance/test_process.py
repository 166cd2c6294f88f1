"""Start, output, files and exit of the process, as an operator sees them."""

from __future__ import annotations

import json
import os
import resource
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from tests import forks
from tests.acceptance.clients import run_client
from tests.acceptance.service import CHECKOUT, SERVE, TWISTD, Certificate, fetch, os_image, run_service
from tests.variants import soaked

pytestmark = pytest.mark.acceptance

STANDALONE = {"twistd": (*TWISTD, "--standalone"), "image-service": (*SERVE, "--standalone")}


@pytest.mark.parametrize("command", STANDALONE)
def test_sigterm_exits_with_0_and_leaves_only_data_dir(command: str, tmp_path: Path) -> None:
    with run_service(tmp_path, [], command=STANDALONE[command]) as service:
        assert service.get("/live").status == 200
    assert {path.name for path in tmp_path.iterdir()} == {"data", "stdout", "stderr"}


def test_standalone_mode_is_reached_on_loopback_only_unless_configured(tmp_path: Path) -> None:
    for directory, environment, is_reached in (
        (tmp_path / "default", {}, False),
        (tmp_path / "configured", {"LISTEN_ADDRESS": "::"}, True),
    ):
        directory.mkdir()
        with run_service(
            directory, [], command=STANDALONE["image-service"], environment=environment
        ) as service:
            elsewhere = service.url.replace("127.0.0.1", "127.0.0.2")
            with nullcontext() if is_reached else pytest.raises(ConnectionRefusedError):
                fetch(f"{elsewhere}/live")
        assert (b"serves all images without credentials" in service.output) == is_reached


def test_standalone_mode_with_an_upstream_exits_with_78(tmp_path: Path) -> None:
    environment = {**os.environ, "ASSISTED_SERVICE_HOST": "assisted.example", "DATA_DIR": str(tmp_path)}
    done = forks.run(STANDALONE["image-service"], env=environment)
    assert done.returncode == 78
    assert "--standalone and ASSISTED_SERVICE_HOST" in done.stderr


def test_faults_of_the_configuration_are_the_same_under_twistd(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "DATA_DIR": str(tmp_path)}
    ended = [forks.run(command, env=environment, cwd=tmp_path, timeout=100) for command in (SERVE, TWISTD)]
    assert [(each.returncode, each.stdout, each.stderr) for each in ended] == 2 * [
        (
            78,
            "",
            (
                "image-service: the configuration is not valid:\n"
                "ASSISTED_SERVICE_HOST: is not set, but required\n"
                "OS_IMAGES or RHCOS_VERSIONS: is not set, but required\n"
            ),
        )
    ]


def test_texts_of_variables_are_read_from_files(tmp_path: Path) -> None:
    """The sample is in OS_IMAGES; a level above info silences the log."""
    sample = tmp_path / "sample.iso"
    with run_service(tmp_path, []) as service:
        sample.write_bytes((tmp_path / "data" / "sample.iso").read_bytes())
    (tmp_path / "images.json").write_text(json.dumps([os_image(sample, "4.99")], indent=4))
    (tmp_path / "level").write_text("error\n")
    (tmp_path / "stdout").unlink()
    environment = {"OS_IMAGES": f"@{tmp_path}/images.json", "LOGLEVEL": f"@{tmp_path}/level", "WORKERS": "2"}
    with run_service(tmp_path, [], command=STANDALONE["image-service"], environment=environment) as service:
        (image,) = json.loads(service.get("/images").body)["images"]
        assert image["version"] == "4.99"
    assert service.stdout == b""


def test_files_of_secrets_are_private_from_the_start_on(tmp_path: Path) -> None:
    data, secrets = tmp_path / "data", {"snapshot.secret", "snapshots.sqlite"}
    secrets |= {f"standalone/{name}" for name in ("infra-envs.sqlite", "ca.key", "server.pem")}
    for _ in range(2):  # the second time they have been restored from a backup that keeps no modes
        with run_service(tmp_path, [], command=STANDALONE["image-service"]) as service:
            service.get(urlsplit(service.wait_for(r'curl [^"]*?(http://[^"\s]+)')).path)
            modes = {name: (data / name).stat().st_mode & 0o777 for name in secrets}
        assert modes == dict.fromkeys(secrets, 0o600)
        assert (data / "standalone").stat().st_mode & 0o777 == 0o700
        for name in secrets:
            (data / name).chmod(0o644)
        (data / "standalone").chmod(0o755)
    output = (tmp_path / "stdout").read_text()
    assert {name for name in secrets if f"{data / name} had mode 0644" in output} == secrets
    assert f"{data / 'standalone'} had mode 0755" in output


@pytest.mark.parametrize("workers", [soaked("1"), "2"])
def test_no_process_writes_its_secrets_to_a_core_file(tmp_path: Path, workers: str) -> None:
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 and os.geteuid() != 0:
        pytest.skip("the hard limit is 0, which only root can raise: the kernel writes no core file anyway")
    allowed = ("sh", "-c", 'ulimit -c unlimited || ulimit -S -c "$(ulimit -H -c)"; exec "$@"', "sh")
    command = (*allowed, *STANDALONE["image-service"])
    with run_service(tmp_path, [], command=command, environment={"WORKERS": workers}) as service:
        pid = service.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == (2 if workers == "2" else 0)
        for each in (str(pid), *children):
            assert resource.prlimit(int(each), resource.RLIMIT_CORE)[0] == 0


def test_key_that_every_user_may_read_is_logged(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf, key, chain, ca = (
        authority.issue_cert("127.0.0.1"),
        *(tmp_path / name for name in ("key", "crt", "ca")),
    )
    leaf.private_key_pem.write_to_path(key)
    leaf.cert_chain_pems[0].write_to_path(chain)
    authority.cert_pem.write_to_path(ca)
    key.chmod(0o644)
    with run_service(tmp_path, [], certificate=Certificate(key, chain, ca)) as service:
        assert f"{key} has mode 0644: every user has access to it" in service.output.decode()


@pytest.mark.soak
@pytest.mark.parametrize("workers", [soaked("1"), "2"])
def test_warning_about_the_settings_is_logged_once(tmp_path: Path, workers: str) -> None:
    environment = {"LISTEN_ADDRESS": "0.0.0.0", "WORKERS": workers}  # noqa: S104 - for a minute
    with run_service(tmp_path, [], command=STANDALONE["image-service"], environment=environment) as service:
        port = urlsplit(service.url).port
    lines = [json.loads(line) for line in service.stdout.splitlines()]
    warnings = [line["message"] for line in lines if "IMAGE_SERVICE_BASE_URL" in line["message"]]
    assert warnings == [
        (
            f"clients elsewhere cannot reach http://localhost:{port}: minimal ISOs, PXE and mirror URLs will"
            " not work; set IMAGE_SERVICE_BASE_URL"
        )
    ]


def test_log_is_json_lines_on_stdout_only(tmp_path: Path) -> None:
    with run_service(tmp_path, [], command=STANDALONE["image-service"]) as service:
        service.get("/nothing")
    lines = [json.loads(line) for line in service.stdout.splitlines()]
    assert [line for line in lines if line.get("status") == 404]
    assert service.output == service.stdout


def test_printed_url_serves_the_sample_without_os_images(tmp_path: Path) -> None:
    image = tmp_path / "image.iso"
    with run_service(tmp_path, [], command=STANDALONE["image-service"]) as service:
        url = service.wait_for(r'curl [^"]*?(http://[^"\s]+)')
        retry = ("--retry", "20", "--retry-delay", "1")
        run_client("curl", "--silent", "--show-error", "--fail", *retry, "--output", image, url)
    config = json.loads(run_client("coreos-installer", "iso", "ignition", "show", image))
    assert config["ignition"]["version"].startswith("3.")
    reset = run_client("coreos-installer", "iso", "reset", "-o", "-", image)
    assert reset == (tmp_path / "data" / "sample.iso").read_bytes()
