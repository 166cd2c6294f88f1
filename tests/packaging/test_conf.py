"""The files in ``conf/`` are complete, show the real defaults, and are accepted."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from image_service.settings.settings import Settings, variables
from image_service.tools.loadtest.traffic.objectives import parse_objective
from tests.acceptance.clients import needs_client
from tests.ports import free_port

CONF = Path(__file__).resolve().parents[2] / "conf"


def assignments(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def commented_out(text: str) -> dict[str, str]:
    return assignments(re.sub(r"^#(?=\w+=)", "", text, flags=re.MULTILINE))


@pytest.fixture
def example() -> str:
    return (CONF / "image-service.env").read_text()


def test_example_names_every_variable_and_no_other(example: str) -> None:
    documented = commented_out(example)
    assert documented.keys() == {variable.names[0] for variable in variables()}


def test_example_shows_the_defaults_that_hold(example: str) -> None:
    defaults = {
        variable.names[0]: variable.default for variable in variables() if variable.default is not None
    }
    shown = commented_out(example)
    left_at_default = defaults.keys() - assignments(example).keys()
    assert {name: shown[name] for name in left_at_default} == {
        name: defaults[name] for name in left_at_default
    }


def test_example_is_valid_configuration(example: str, tmp_path: Path) -> None:
    settings = Settings.from_environment(assignments(example) | {"DATA_DIR": str(tmp_path)})
    assert settings.upstream.url == "https://assisted-service.example.com:8090"
    assert [image.version for image in settings.catalog.images] == ["9.6.20250826-0"]


def analyze(verb: str, *options: str, unit: Path) -> subprocess.CompletedProcess[str]:
    command = [needs_client("systemd-analyze"), verb, *options, str(unit)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def copy_unit(name: str, directory: Path) -> Path:
    """Copy a unit with a program that exists on this machine, as systemd requires."""
    copy = directory / name
    text = (CONF / name).read_text()
    copy.write_text(text.replace("/opt/image-service/bin/image-service", shutil.which("true") or ""))
    return copy


@pytest.mark.parametrize("name", sorted(path.name for path in CONF.glob("*.service")))
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    checked = analyze("verify", unit=copy_unit(name, tmp_path))
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_systemd_accepts_the_timer_of_the_load_test(tmp_path: Path) -> None:
    copy_unit("image-service-loadtest.service", tmp_path)
    checked = analyze("verify", unit=copy_unit("image-service-loadtest.timer", tmp_path))
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_unit_of_the_load_test_has_the_objectives_of_the_document() -> None:
    unit = (CONF / "image-service-loadtest.service").read_text()
    objectives = [text.replace("%%", "%") for text in re.findall(r'--slo "(\S+)"', unit)]
    document = (CONF.parent / "docs" / "slo.md").read_text()
    assert set(objectives) == set(re.findall(r"^`--slo '(\S+)'`", document, re.MULTILINE))
    assert all(parse_objective(text) for text in objectives)


def test_load_test_accepts_the_options_of_its_unit(tmp_path: Path) -> None:
    unit = (CONF / "image-service-loadtest.service").read_text().replace("%d", str(tmp_path))
    unit = unit.replace("%S", str(tmp_path)).replace("%%", "%").replace("\\\n", " ")
    (tmp_path / "urls.txt").write_text(f"http://127.0.0.1:{free_port()}/x.iso\n")
    command = [sys.executable, "-m", "image_service.cli", *shlex.split(assignments(unit)["ExecStart"])[1:]]
    done = subprocess.run([*command, "--duration", "1s"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr  # nobody responds
    assert (tmp_path / "image-service-loadtest" / "report.json").is_file()


def test_unit_has_the_administrative_listener_of_the_example(example: str) -> None:
    unit = (CONF / "image-service.service").read_text()
    listen = assignments(example)["ADMIN_LISTEN"]
    assert f"\nEnvironment=ADMIN_LISTEN={listen}\n" in unit


def test_unit_limits_core_memory_and_tasks() -> None:
    """A unit that systemd accepts may still have misspelled names, which it ignores."""
    set_by_unit = assignments((CONF / "image-service.service").read_text())
    limits = {name: set_by_unit.get(name) for name in ("LimitCORE", "MemoryMax", "TasksMax")}
    assert limits == {"LimitCORE": "0", "MemoryMax": "4G", "TasksMax": "1024"}


def test_unit_is_notified_watched_and_reloaded_and_not_restarted_in_vain() -> None:
    set_by_unit = assignments((CONF / "image-service.service").read_text())
    expected = {
        "Type": "notify",
        "NotifyAccess": "main",
        "WatchdogSec": "30",
        "TimeoutStartSec": "60",
        "ExecReload": '/bin/sh -c "kill -HUP $MAINPID"',
        "RestartPreventExitStatus": "78",
        "StartLimitIntervalSec": "300",
        "StartLimitBurst": "10",
    }
    assert {name: set_by_unit.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "threshold"),
    [
        ("image-service.service", 15),
        ("image-service-jobs.service", 40),
        ("image-service-worker.service", 40),
        ("image-service-loadtest.service", 15),
    ],
)
def test_systemd_finds_little_exposed(name: str, threshold: int, tmp_path: Path) -> None:
    """A worker isolates its programs by namespaces, which it therefore may make."""
    unit = copy_unit(name, tmp_path)
    checked = analyze("security", "--offline=true", f"--threshold={threshold}", unit=unit)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_unit_of_the_service_lets_setpriv_start_programs() -> None:
    """It sets its capabilities also if they stay the same, and @privileged has the system call."""
    filters = re.findall(
        "^SystemCallFilter=(.*)$", (CONF / "image-service.service").read_text(), re.MULTILINE
    )
    assert filters == ["@system-service", "~@privileged", "capset"]


def test_unit_of_the_worker_is_not_restarted_in_vain() -> None:
    set_by_unit = assignments((CONF / "image-service-worker.service").read_text())
    expected = {"LimitCORE": "0", "MemoryMax": "2G", "RestartPreventExitStatus": "2 78", "KillMode": "mixed"}
    assert {name: set_by_unit.get(name) for name in expected} == expected


# Of podman-systemd.unit(5) in podman 4.5.
_QUADLET_KEYS = {
    *("Image", "ContainerName", "EnvironmentFile", "Volume", "PublishPort", "Notify", "ReadOnly"),
    *("NoNewPrivileges", "DropCapability", "PodmanArgs", "HealthCmd", "HealthInterval", "HealthOnFailure"),
    *("HealthStartPeriod", "HealthTimeout"),
}


def quadlet() -> dict[str, list[tuple[str, str]]]:
    """Return the assignments of each section."""
    sections: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in (CONF / "image-service.container").read_text().splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            name = found[1]
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            sections.setdefault(name, []).append((key, value))
    return sections


def test_quadlet_runs_the_image_as_documented() -> None:
    container = quadlet()["Container"]
    assert {name for name, _ in container} <= _QUADLET_KEYS
    documented = (CONF.parent / "docs/container.md").read_text()
    dockerfile = (CONF.parent / "Dockerfile").read_text()
    assert {"Volume": "image-service:/data", "PublishPort": "8080:8080"}.items() <= dict(container).items()
    for option in ("--volume image-service:/data", "--publish 8080:8080", "--read-only", "--stop-timeout 30"):
        assert option in documented
    (health,) = (value for name, value in container if name == "HealthCmd")
    words = ", ".join(f'"{word}"' for word in health.split())
    assert f"CMD [{words}]" in dockerfile
    (options,) = (value for name, value in container if name == "PodmanArgs")
    assert "--stop-timeout=30" in options.split()


def test_quadlet_is_restarted_and_stopped_as_the_unit() -> None:
    sections = quadlet()
    of_unit = assignments((CONF / "image-service.service").read_text())
    service, start = dict(sections["Service"]), dict(sections["Unit"])
    for name in ("Restart", "RestartSec", "RestartPreventExitStatus", "TimeoutStartSec"):
        assert service[name] == of_unit[name]
    for name in ("StartLimitIntervalSec", "StartLimitBurst"):
        assert start[name] == of_unit[name]
    assert int(service["TimeoutStopSec"]) > 30


def test_podman_accepts_the_quadlet(tmp_path: Path) -> None:
    generator = Path("/usr/lib/systemd/system-generators/podman-system-generator")
    if not generator.exists():
        pytest.skip("podman has no generator of units: it came with 4.4")
    shutil.copy(CONF / "image-service.container", tmp_path)
    done = subprocess.run(
        [generator, "--dryrun"],
        env={"QUADLET_UNIT_DIRS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "unsupported key" not in done.stderr
    assert "--sdnotify=container" in done.stdout
