"""The manifests and the chart in a Kubernetes of two nodes: ``make cluster-test``."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import yaml

from tests.acceptance.clients import needs_client
from tests.acceptance.service import INFRA_ENVS, SERVE, fetch
from tests.jobs.engine.servers import running_engine
from tests.jobs.running_role import API, compose_request, wait_until
from tests.jobs.tenants.tokens import RSA, key_set
from tests.nginx import running_nginx
from tests.packaging.cluster import HOST, Cluster, find_programs, running_cluster
from tests.packaging.conftest import CHECKOUT
from tests.packaging.containers import finish
from tests.packaging.manifests import Manifest, parse_manifests
from tests.postgres import running_postgres
from tests.remote_base import dense_base
from tests.replicas.tcp_proxy import TcpProxy
from tests.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Answer
    from tests.packaging.containers import Podman

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

CHART = CHECKOUT / "conf" / "helm" / "image-service"
VERSIONS = ("0.1.0", "0.1.1")
"""Tags of one image: an update from the first to the second replaces all pods."""

NAMESPACE = "image-service"
STAND_IN_PORT = 8099
ASSISTED = f"{HOST}:8090"
AUTHORIZATION = {"Authorization": "Bearer token-of-the-stand-in"}
IMAGE = {"openshift_version": "4.17", "cpu_architecture": "x86_64", "version": "9.6.20250826-0"}
BASE_MEGABYTES = 100
SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}}
ROOM = {"imagesGiB": 1, "remoteGiB": 1, "snapshotsGiB": 1}
CONNECTIONS = 5 * 1 * 2 * 3
"""Of PostgreSQL in an update: those of docs/kubernetes.md for three replicas of one serving process."""
LOADTEST = (sys.executable, "-m", "image_service.cli", "loadtest")
HUNG_SECONDS = 60


@attrs.frozen
class Site:
    """A cluster, and what its pods reach.

    Args:
        cluster: with the namespace, its Secrets and the images.
        database: before that of the replicas.
        path: of an image.
        origin: the URL of the directory with the base image.
        image: the bytes that must be served.
        values: of the chart, beside those of ``three-replicas.yaml``.
        jobs: of the jobs role.
    """

    cluster: Cluster
    database: TcpProxy
    path: str
    origin: str
    image: bytes = attrs.field(repr=False)
    values: Manifest
    jobs: Manifest

    def helm(self, verb: str, *options: str, values: Manifest | None = None) -> None:
        """Install or upgrade the release; return once the objects are made."""
        file = self.cluster.directory / "values.json"
        file.write_text(json.dumps({**self.values, **(values or {})}))
        shipped = CHECKOUT / "conf" / "helm" / "three-replicas.yaml"
        given = (f"--namespace={NAMESPACE}", f"--values={shipped}", f"--values={file}")
        self.cluster.run("helm", verb, "image-service", str(CHART), *given, *options)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl in the namespace."""
        return self.cluster.run("kubectl", f"--namespace={NAMESPACE}", *arguments, text=text)

    def rolled_out(self, name: str = "image-service") -> None:
        """Wait until a Deployment has all pods, and no old ones."""
        self.kubectl("rollout", "status", f"deployment/{name}", "--timeout=300s")

    def pods(self, container: str = "image-service") -> list[Manifest]:
        """Return the pods of a container that are not ending."""
        found = self.cluster.get(f"--namespace={NAMESPACE}", "pods")["items"]
        running = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return [pod for pod in running if pod["spec"]["containers"][0]["name"] == container]

    def is_ready(self, pod: Manifest) -> bool:
        """Return True if a pod was ready when it was asked for."""
        conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
        return conditions.get("Ready") == "True"

    def address(self, service: str = "image-service") -> str:
        """Return the address of a Service inside of the cluster."""
        found = self.cluster.get(f"--namespace={NAMESPACE}", "service", service)
        return str(found["spec"]["clusterIP"])

    def get(self, host: str, **headers: str) -> Answer:
        """Request the image from a Service or a pod."""
        return fetch(f"http://{host}:8080{self.path}", headers={**AUTHORIZATION, **headers})

    def events(self) -> str:
        """Return what happened in the namespace."""
        return self.kubectl("get", "pods,events", "--output=wide")


@pytest.fixture(scope="session")  # before the image, which takes minutes
def programs() -> Path:
    return find_programs()


@pytest.fixture(scope="module")
def archive(podman: Podman, jobs_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The images of the pods: the service, under two tags, and one that only sleeps."""
    context = tmp_path_factory.mktemp("sandbox")
    (context / "Containerfile").write_text(
        'ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nENTRYPOINT ["sleep", "infinity"]\n'
    )
    podman.build(context, SANDBOX, {})
    names = [f"docker.io/library/image-service:{version}" for version in VERSIONS]
    file = context / "images.tar"
    try:
        podman.run("tag", jobs_image, *names)
        podman.run("save", "--multi-image-archive", "--quiet", f"--output={file}", SANDBOX, *names)
        yield file
    finally:
        podman.run("untag", jobs_image, *names)
        podman.remove(SANDBOX)


SANDBOX = "localhost/image-service-sandbox:test"


@pytest.fixture(scope="module")
def site(programs: Path, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(programs, directory, archive, SANDBOX))
        stack.enter_context(cluster.inside())
        postgres = stack.enter_context(running_postgres())
        for name in ("s3", "engine", "nginx/files"):
            (directory / name).mkdir(parents=True)
        s3 = stack.enter_context(running_s3_server(directory / "s3"))
        nginx = stack.enter_context(running_nginx(directory / "nginx"))
        disk = resources.files("image_service.server.standalone").joinpath("sample-disk.raw.xz").read_bytes()
        base = dense_base(BASE_MEGABYTES)
        (nginx.files / "base.iso").write_bytes(base)
        (nginx.files / "disk.raw.xz").write_bytes(disk)
        origin = f"http://{HOST}:{passing(stack, nginx.port).port}"
        (s3.directory / "base.iso").write_bytes(base)
        s3.publish("base.iso")
        engine = stack.enter_context(running_engine(directory / "engine"))
        queue = passing(stack, int(engine.address.rpartition(":")[2]))
        infra_env = stack.enter_context(standing_in(directory, s3.directory / "base.iso"))
        database = passing(stack, postgres.port)
        url = postgres.create_database().replace(f"127.0.0.1:{postgres.port}", f"{HOST}:{database.port}")
        make_secrets(cluster, url)
        endpoint = f"http://{HOST}:{passing(stack, s3.port).port}"
        values = {
            "settings": {
                "ASSISTED_SERVICE_HOST": ASSISTED,
                "ASSISTED_SERVICE_SCHEME": "http",
                "IMAGE_SERVICE_BASE_URL": "http://images.example.com",
                "AWS_ENDPOINT_URL_S3": endpoint,
                "AWS_REGION": REGION,
            },
            "osImages": [{**IMAGE, "url": f"s3://{BUCKET}/base.iso", "remote": True}],
            "resources": SMALL,
            "storage": ROOM,
        }
        jobs = {
            "osImages": [
                *values["osImages"],
                {**IMAGE, "url": f"{origin}/disk.raw.xz", "type": "metal-disk"},
            ],
            "jobs": {
                "enabled": True,
                "replicas": 2,
                "settings": {
                    "TEMPORAL_ADDRESS": f"{HOST}:{queue.port}",
                    "STORE_URL": f"s3://{BUCKET}/store",
                    "AWS_ENDPOINT_URL_S3": endpoint,
                    "AWS_REGION": REGION,
                },
                "files": {
                    "JWT_KEYS_FILE": {"configMap": "image-service-acl", "key": "keys.json"},
                    "JWT_ACL_FILE": {"configMap": "image-service-acl", "key": "acl.json"},
                },
                "storageGiB": 1,
                "resources": SMALL,
                "worker": {"replicas": 0, "scratchGiB": 1, "resources": SMALL},
            },
        }
        path = f"/byid/{infra_env}/{IMAGE['openshift_version']}/x86_64/full.iso"
        image = fetch(f"http://127.0.0.1:{STAND_IN_PORT}{path}").body
        yield Site(cluster, database, path, origin, image, values, jobs)


def passing(stack: ExitStack, port: int) -> TcpProxy:
    """Let pods reach a port of loopback."""
    proxy = TcpProxy(HOST, ("127.0.0.1", port))
    stack.callback(proxy.close)
    return proxy


@contextmanager
def standing_in(directory: Path, base: Path) -> Iterator[str]:
    """Run a stand-in for assisted-service that pods reach; yield an infra-env."""
    environment = {
        "DATA_DIR": str(directory / "assisted"),
        "LISTEN_PORT": str(STAND_IN_PORT),
        "OS_IMAGES": json.dumps([{**IMAGE, "url": base.as_uri()}]),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(CHECKOUT),
        "STANDALONE_LISTEN": ASSISTED,
        "STANDALONE_TOKEN": AUTHORIZATION["Authorization"].removeprefix("Bearer "),
    }
    log = directory / "assisted.log"
    command = (*SERVE, "--standalone")
    with (
        log.open("wb") as file,
        subprocess.Popen(command, env=environment, stdout=file, stderr=file) as process,
    ):
        try:
            wait_until(lambda: b"try it" in log.read_bytes(), log.read_text)
            fields = {"name": "cluster", "openshift_version": IMAGE["openshift_version"]}
            headers = {**AUTHORIZATION, "Content-Type": "application/json"}
            answer = fetch(
                f"http://{ASSISTED}{INFRA_ENVS}", "POST", headers=headers, body=json.dumps(fields).encode()
            )
            assert answer.status == HTTPStatus.CREATED, answer
            yield answer.json()["id"]
        finally:
            process.kill()


def make_secrets(cluster: Cluster, database: str) -> None:
    """Make the namespace, as docs/kubernetes.md has it, and what the values name."""
    cluster.run("kubectl", "create", "namespace", NAMESPACE)
    restricted = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    cluster.run("kubectl", "label", "namespace", NAMESPACE, *restricted)
    rules = [
        {"claim": "rh-org-id", "pattern": "^1$"},
        {"claim": "sub", "pattern": "^operator$", "operator": True},
    ]
    objects = {
        "secret generic image-service-instance": {"secret": secrets.token_hex(32)},
        "secret generic image-service-database": {"url": database},
        "secret generic image-service-s3": {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        },
        "secret generic image-service-admin": {"token": secrets.token_hex()},
        "secret generic image-service-worker": {"token": RSA.token(header=None, sub="operator")},
        "configmap image-service-acl": {"acl.json": json.dumps(rules), "keys.json": key_set(RSA).decode()},
    }
    for what, data in objects.items():
        literals = [f"--from-literal={key}={value}" for key, value in data.items()]
        cluster.run("kubectl", f"--namespace={NAMESPACE}", "create", *what.split(), *literals)


@pytest.mark.parametrize("size", ["one-replica", "three-replicas"])
def test_manifests_are_admitted_without_a_warning(site: Site, size: str) -> None:
    manifests = parse_manifests((CHECKOUT / "conf" / "kubernetes" / f"{size}.yaml").read_text())
    assert site.cluster.apply(manifests, f"--namespace={NAMESPACE}", "--dry-run=server") == ""


def test_manifest_of_one_replica_serves_the_image(site: Site) -> None:
    text = (CHECKOUT / "conf" / "kubernetes" / "one-replica.yaml").read_text()
    edited = parse_manifests(text.replace("assisted-service:8090", ASSISTED).replace('cpu: "1"', "cpu: 50m"))
    for manifest in edited:
        if manifest["kind"] == "ConfigMap":
            entry = {**IMAGE, "url": f"{site.origin}/base.iso"}
            manifest["data"]["os-images.json"] = json.dumps([entry])
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "data"},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": str(site.cluster.directory / "volume")},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node0"]}
                            ]
                        }
                    ]
                }
            },
        },
    }
    (site.cluster.directory / "volume").mkdir()
    site.cluster.apply([volume])
    site.cluster.apply(edited, f"--namespace={NAMESPACE}")
    try:
        site.rolled_out()
        answer = site.get(site.address())
        assert answer.status == HTTPStatus.OK, site.events()
        assert answer.body == site.image
    finally:
        site.kubectl("delete", "--wait", "--filename=-", text=yaml.safe_dump_all(edited))
        site.cluster.run("kubectl", "delete", "persistentvolume", "data")


@pytest.fixture(scope="module")
def installed(site: Site) -> Iterator[Site]:
    """Install the chart with three replicas, and print the time until the first byte of an image."""
    begun = time.monotonic()
    site.helm("install")
    host = site.address()
    wait_until(lambda: serves(site, host), site.events)
    print(f"helm install to the first byte: {time.monotonic() - begun:.1f} s")  # noqa: T201 - same
    site.rolled_out()
    wait_until(lambda: len(ready(site)) == 3, site.events)
    yield site
    site.cluster.run("helm", "uninstall", f"--namespace={NAMESPACE}", "--wait", "image-service")


def serves(site: Site, host: str) -> bool:
    try:
        return site.get(host, Range="bytes=0-0").status == HTTPStatus.PARTIAL_CONTENT
    except OSError:
        return False


def ready(site: Site) -> list[Manifest]:
    return list(filter(site.is_ready, site.pods()))


def test_all_replicas_serve_one_image(installed: Site) -> None:
    answers = [installed.get(pod["status"]["podIP"]) for pod in ready(installed)]
    assert [answer.body == installed.image for answer in answers] == [True] * 3
    assert len({answer.headers["ETag"] for answer in answers}) == 1


@contextmanager
def loaded(site: Site, directory: Path, *options: str) -> Iterator[None]:
    """Have twelve clients read from the Service until the block ends, and longer; no request may fail."""
    url = f"http://{site.address()}:8080{site.path}"
    wanted = ("--profile=mount", "--clients=12", f"--report={directory}", "--slo=errors<0.001%", *options)
    header = f"--header=Authorization: {AUTHORIZATION['Authorization']}"
    with subprocess.Popen(
        [*LOADTEST, url, *wanted, header], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    ) as load:
        yield
        output, _ = load.communicate()
    print(output)  # noqa: T201 - figures for people
    assert load.returncode == 0, output


def test_update_under_load_loses_no_request(installed: Site, tmp_path: Path) -> None:
    before = {pod["metadata"]["name"] for pod in ready(installed)}
    with loaded(installed, tmp_path, "--duration=60s"):
        installed.helm("upgrade", f"--set=image.tag={VERSIONS[1]}")
        installed.rolled_out()
    print(f"most connections of PostgreSQL until then: {installed.database.most}")  # noqa: T201 - same
    assert 0 < installed.database.most <= CONNECTIONS
    after = {pod["metadata"]["name"] for pod in ready(installed)}
    assert len(after) == 3
    assert not before & after


def nodes(site: Site) -> set[str]:
    """Return the names of the nodes that have ready pods of the service."""
    return {pod["spec"]["nodeName"] for pod in ready(site)}


def test_drained_node_loses_no_request(installed: Site, tmp_path: Path) -> None:
    assert nodes(installed) == {"node0", "node1"}
    drain = ("drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
    try:
        with loaded(installed, tmp_path, "--duration=60s"):
            installed.cluster.run("kubectl", *drain)
        wait_until(lambda: len(ready(installed)) == 3, installed.events)
        assert nodes(installed) == {"node0"}
    finally:
        installed.cluster.run("kubectl", "uncordon", "node1")


def test_hung_pod_is_started_again_within_a_minute(installed: Site) -> None:
    pod = ready(installed)[0]
    name = pod["metadata"]["name"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 620

    def restarts() -> int:
        found = installed.cluster.get(f"--namespace={NAMESPACE}", "pod", name)
        return int(found["status"]["containerStatuses"][0]["restartCount"])

    before, begun = restarts(), time.monotonic()
    installed.cluster.send("STOP", pod)
    wait_until(lambda: restarts() > before, installed.events)
    seconds = time.monotonic() - begun
    print(f"a hung pod is started again after {seconds:.0f} s")  # noqa: T201 - same
    assert seconds < HUNG_SECONDS
    wait_until(lambda: len(ready(installed)) == 3, installed.events)


def test_second_eviction_waits_for_the_first(installed: Site) -> None:
    names = [pod["metadata"]["name"] for pod in ready(installed)]
    answers = [evict(installed, name) for name in names[:2]]
    assert answers[0] == ""
    assert "TooManyRequests" in answers[1]
    wait_until(lambda: len(ready(installed)) == 3, installed.events)


def evict(site: Site, name: str) -> str:
    """Ask for an eviction; return the error."""
    metadata = {"name": name, "namespace": NAMESPACE}
    document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
    asked = site.cluster.tried(
        "kubectl", "create", f"--raw={path}", "--filename=-", text=json.dumps(document)
    )
    return asked.stderr


def exit_statuses(site: Site, container: str = "image-service") -> set[int]:
    """Return the statuses with which processes of a container have ended."""
    statuses = [pod["status"].get("containerStatuses", [{}])[0] for pod in site.pods(container)]
    ended = [found for each in statuses if (found := each.get("lastState", {}).get("terminated"))]
    return {state["exitCode"] for state in ended}


def test_wrong_configuration_leaves_the_old_pods_until_it_is_rolled_back(installed: Site) -> None:
    before = {pod["metadata"]["name"] for pod in ready(installed)}
    installed.helm("upgrade", "--set=settings.LOGLEVEL=loud")

    wait_until(lambda: 78 in exit_statuses(installed), installed.events)
    assert before <= {pod["metadata"]["name"] for pod in ready(installed)}
    assert serves(installed, installed.address())
    installed.cluster.run("helm", "rollback", f"--namespace={NAMESPACE}", "image-service")
    installed.rolled_out()
    assert before == {pod["metadata"]["name"] for pod in ready(installed)}


def test_replicas_serve_on_without_their_database(installed: Site) -> None:
    health = ("exec", "deployment/image-service", "--", "image-service", "health")
    replicas = [pod["status"]["podIP"] for pod in ready(installed)]
    # Each knows the snapshot of the image before: without the database it would learn of none.
    (etag,) = {installed.get(replica).headers["ETag"] for replica in replicas}
    assert installed.kubectl(*health) == "ok"
    installed.database.cut()
    try:
        wait_until(lambda: "database: unreachable" in installed.kubectl(*health), installed.events)
        part = {"If-Match": etag, "Range": "bytes=0-99"}
        answers = [installed.get(replica, **part) for replica in replicas]
    finally:
        installed.database.mend()
    assert [answer.status for answer in answers] == [HTTPStatus.PARTIAL_CONTENT] * 3
    assert len(ready(installed)) == 3
    wait_until(lambda: installed.kubectl(*health) == "ok", installed.events)


def test_jobs_role_and_its_workers_compose_a_disk(installed: Site) -> None:
    installed.helm("upgrade", values=installed.jobs)
    server = f"http://{installed.address('image-service-jobs')}:8091"  # there is no DNS here
    worker = installed.jobs["jobs"]["worker"]
    worker |= {"replicas": 1, "server": server, "options": ["--require-isolation"]}
    installed.helm("upgrade", values=installed.jobs)
    wait_until(lambda: 78 in exit_statuses(installed, "worker"), installed.events)
    allow_namespaces(installed.cluster)
    worker |= {"seccompProfile": {"type": "Localhost", "localhostProfile": "worker.json"}}
    installed.helm("upgrade", values=installed.jobs)
    for name in ("image-service-jobs", "image-service-worker"):
        installed.rolled_out(name)
    assert "programs run in unshare" in installed.kubectl("logs", "deployment/image-service-worker")
    token = {"Authorization": f"Bearer {RSA.token(header=None, **{'rh-org-id': '1'})}"}
    document = compose_request("guest-image", f"rhcos-{IMAGE['openshift_version']}")
    fields = {**token, "Content-Type": "application/json"}
    answer = fetch(f"{server}{API}/compose", "POST", headers=fields, body=json.dumps(document).encode())
    assert answer.status == HTTPStatus.CREATED, answer
    compose = f"{server}{API}/composes/{answer.json()['id']}"

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(fetch(compose, headers=token).body)
        return found

    wait_until(lambda: status()["status"] != "pending", installed.events)
    assert status()["status"] == "success", status()
    assert fetch(f"{compose}/download", headers={**token, "Range": "bytes=0-3"}).body == b"QFI\xfb"


def allow_namespaces(cluster: Cluster) -> None:
    """Give the nodes the seccomp profile of workers, made by the command of docs/kubernetes.md."""
    text = (CHECKOUT / "docs" / "kubernetes.md").read_text()
    (command,) = re.findall(r"^    (jq (?:.+\n    )+.+) >worker\.json$", text, re.MULTILINE)
    needs_client("jq")
    profile = finish(["sh", "-c", command])
    for node in cluster.nodes:
        (node.directory / "kubelet" / "seccomp").mkdir()
        (node.directory / "kubelet" / "seccomp" / "worker.json").write_text(profile)


def test_lost_node_leaves_its_pods_to_the_other(installed: Site) -> None:
    """The last test: the node does not come back."""
    assert nodes(installed) == {"node0", "node1"}
    etag, host = installed.get(installed.address()).headers["ETag"], installed.address()
    begun = time.monotonic()
    installed.cluster.node("node1").end()
    wait_until(lambda: nodes(installed) == {"node0"}, installed.events)
    print(f"pods of a lost node are unready after {time.monotonic() - begun:.0f} s")  # noqa: T201 - same
    for _ in range(20):
        assert (
            installed.get(host, Range="bytes=0-99", **{"If-Match": etag}).status == HTTPStatus.PARTIAL_CONTENT
        )
    installed.cluster.run("kubectl", "delete", "node", "node1")  # as a cloud does whose machine is gone
    wait_until(lambda: len(ready(installed)) >= 3, installed.events)
    assert nodes(installed) == {"node0"}
