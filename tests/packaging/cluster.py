"""A Kubernetes of two nodes, each in namespaces of its own: nothing is left when its first process ends.

The control plane runs on the first node. What pods reach runs in its network namespace too
(`Cluster.inside`), and listens at `HOST`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import yaml

from tests.acceptance.clients import missing, needs_client
from tests.jobs.running_role import wait_until
from tests.network_namespace import inside_network
from tests.packaging.conftest import CHECKOUT
from tests.packaging.containers import finish
from tests.processes import children_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HOST = "172.31.77.1"
"""The first node's address, by which pods reach what listens there."""

_PODS, _SERVICES = "10.244.0.0/16", "10.96.0.0/16"
_CGROUPS = "image-service-cluster-test"
_ETCD_PORT, _API_PORT, _KUBELET_PORT = 2379, 6443, 10250

# The first process: children of children that have ended are its own, and leave no zombies.
_FIRST = (
    "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('up', flush=True); signal.pause()"
)

# What kubelet would set in the kernel of the whole machine: it finds these values, and writes nothing.
_KERNEL = {
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}
_NETWORK = f"""
ip link set lo up
ip link add node0 type bridge
ip address add {HOST}/24 dev node0
ip link set node0 up
ip route add {_SERVICES} dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward
"""
# On the first node, with the number, the first process and the address of another.
_JOIN = """
ip link add "node$1" type veth peer name node0 netns "$2"
ip link set "node$1" master node0 up
ip route add "10.244.$1.0/24" via "$3"
"""
_JOINED = f"""
ip link set lo up
ip address add "$1/24" dev node0
ip link set node0 up
ip route add default via {HOST}
echo 1 >/proc/sys/net/ipv4/ip_forward
"""
# What the runtime and kubelet write at places of their own choice is for this mount namespace only.
_FILES = """
mkdir "$1/var" "$1/work"
mount -t overlay -o "lowerdir=/var,upperdir=$1/var,workdir=$1/work" overlay /var
mount -t tmpfs tmpfs /run
"""
# In the hierarchy of each controller, or in the only one.
_MAKE_CGROUPS = """
cd /sys/fs/cgroup
if [ -e cgroup.controllers ]; then
    mkdir "$1"
    for controller in cpu cpuset memory pids; do
        echo "+$controller" >cgroup.subtree_control
        echo "+$controller" >"$1/cgroup.subtree_control"
    done
else
    for hierarchy in */; do
        [ -e "$hierarchy/cgroup.procs" ] || continue
        mkdir "$hierarchy$1"
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$hierarchy$file" ] || cat "$hierarchy$file" >"$hierarchy$1/$file"
        done
    done
fi
"""
_CONTAINERD = """
version = 2
root = "{directory}/containerd/root"
state = "{directory}/containerd/state"
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{sandbox}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{directory}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""
_PLUGINS = "/usr/lib/cni"
_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "port": _KUBELET_PORT,
    "healthzPort": 0,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "failSwapOn": False,
    "oomScoreAdj": 0,
    "protectKernelDefaults": True,
    # Of the disk that the tests share with everything else.
    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    "imageGCHighThresholdPercent": 100,
}


@attrs.frozen
class Node:
    """A node, as a set of namespaces.

    Args:
        number: of the node, from 0 on.
        directory: of its files.
        first: the first process of its namespaces.
        processes: that end with it.
    """

    number: int
    directory: Path
    first: int
    processes: ExitStack

    @property
    def name(self) -> str:
        """The name of the Node object."""
        return f"node{self.number}"

    @property
    def host(self) -> str:
        """Its address."""
        return f"172.31.77.{self.number + 1}"

    @property
    def cgroup(self) -> str:
        """The cgroup of its pods."""
        return f"{_CGROUPS}-{self.name}"

    def command(self, *command: str | Path) -> list[str]:
        """Return the command line that runs a command on the node."""
        entered = ("nsenter", f"--target={self.first}", "--mount", "--net", "--pid", "--")
        return [*entered, *map(str, command)]

    def containerd(self, *arguments: str | Path) -> str:
        """Ask the node's containerd; return the answer."""
        options = (f"--address={self.directory}/containerd.sock", "--namespace=k8s.io")
        return finish(self.command("ctr", *options, *arguments))

    def start(self, name: str, *command: str | Path) -> None:
        """Start a process that ends with the node; its log is a file of its name."""
        with (self.directory / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                self.command(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.processes.enter_context(started)

    def end(self) -> None:
        """End all processes of the node at once, as a loss of power does."""
        os.kill(self.first, signal.SIGKILL)


@attrs.frozen
class Cluster:
    """The running cluster.

    Args:
        directory: of its files.
        programs: the directory of Kubernetes' programs.
        nodes: of which the first has the control plane.
    """

    directory: Path
    programs: Path
    nodes: Sequence[Node]

    def node(self, name: str) -> Node:
        """Return a node by its name."""
        return next(node for node in self.nodes if node.name == name)

    def tried(
        self, program: str, *arguments: str | Path, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl or helm to its end, with a text as its input."""
        client = (self.programs / program, f"--kubeconfig={self.directory}/admin.yaml")
        command = self.nodes[0].command(*client, *arguments)
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    def run(self, program: str, *arguments: str | Path, text: str | None = None) -> str:
        """Run kubectl or helm to its end; fail the test with its output if it fails."""
        done = self.tried(program, *arguments, text=text)
        assert done.returncode == 0, f"{program} {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def apply(self, manifests: Sequence[Mapping[str, Any]], *options: str) -> str:
        """Apply manifests, of which each field must be known; return the warnings."""
        arguments = ("apply", "--validate=strict", "--filename=-", *options)
        applied = self.tried("kubectl", *arguments, text=yaml.safe_dump_all(manifests))
        assert applied.returncode == 0, applied.stderr
        return applied.stderr

    def get(self, *arguments: str) -> Any:
        """Return an object, or a list of them, from the API."""
        return json.loads(self.run("kubectl", "get", "--output=json", *arguments))

    def send(self, name: str, pod: Mapping[str, Any]) -> None:
        """Send a signal to the first process of a pod's container, as its node does."""
        node = self.node(pod["spec"]["nodeName"])
        container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
        tasks = node.containerd("tasks", "list").splitlines()
        (process,) = (line.split()[1] for line in tasks if line.startswith(container))
        finish(node.command("kill", f"-{name}", process))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Move this thread, and what it starts, into the network namespace until the block ends."""
        with inside_network(Path("/proc", str(self.nodes[0].first), "ns/net")):
            yield

    def explain(self) -> str:
        """Return the last lines of each log."""
        logs = sorted(self.directory.glob("node*/*.log"))
        return "\n".join(f"{log}: {log.read_text(errors='replace')[-1500:]}" for log in logs)


def find_programs() -> Path:
    """Return the directory of Kubernetes' programs, which are compiled by the first call.

    Where a node lacks something else, the test is skipped.
    """
    if os.geteuid() != 0:
        missing("root, without which there is no node")
    for client in ("containerd", "ctr", "etcd", "ip", "iptables", "nsenter", "openssl", "runc", "unshare"):
        needs_client(client)
    needs_client(_PLUGINS)
    directory = CHECKOUT / ".cache" / "kubernetes"
    compiled = subprocess.run([CHECKOUT / ".ci" / "kubernetes", directory], check=False)
    return directory if compiled.returncode == 0 else missing("kubernetes (.ci/kubernetes compiles it)")


@contextmanager
def running_cluster(programs: Path, directory: Path, archive: Path, sandbox: str) -> Iterator[Cluster]:
    """Run a cluster until the block ends.

    Args:
        programs: the directory of Kubernetes' programs.
        directory: for its files; short, because of sockets in it.
        archive: of images for its pods.
        sandbox: the one of them that runs first in each pod, and does nothing.
    """
    with ExitStack() as stack:
        stack.callback(_remove_cgroups)
        nodes = [stack.enter_context(_namespaces(number, directory / f"node{number}")) for number in range(2)]
        cluster = Cluster(directory, programs, nodes)
        first, *others = nodes
        finish(first.command("sh", "-ec", _NETWORK))
        for node in others:
            # The process is named as this namespace of processes knows it.
            entered = ("nsenter", f"--target={first.first}", "--net", "--")
            finish([*entered, "sh", "-ec", _JOIN, "sh", str(node.number), str(node.first), node.host])
            finish(node.command("sh", "-ec", _JOINED, "sh", node.host))
        _make_keys(cluster)
        _start_control_plane(cluster)
        for node in nodes:
            _prepare(node, sandbox)
            _start(cluster, node)
        for node in nodes:
            is_ready = ("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=10s")
            wait_until(lambda: cluster.tried("kubectl", *is_ready).returncode == 0, cluster.explain)  # noqa: B023 - it ends in this turn
            node.containerd("images", "import", archive)
        yield cluster


@contextmanager
def _namespaces(number: int, directory: Path) -> Iterator[Node]:
    directory.mkdir()
    options = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    namespaces = ["unshare", *options, sys.executable, "-c", _FIRST]
    with ExitStack() as processes:
        outer = processes.enter_context(subprocess.Popen(namespaces, stdout=subprocess.PIPE, text=True))
        assert outer.stdout is not None
        assert outer.stdout.readline() == "up\n"
        (first,) = children_of(outer.pid)
        node = Node(number, directory, first, processes)
        try:
            yield node
        finally:
            with suppress(ProcessLookupError):
                node.end()  # the first process has ended when all others in its namespace have


def _prepare(node: Node, sandbox: str) -> None:
    """Make cgroups and files."""
    directory = node.directory
    finish(node.command("sh", "-ec", _FILES, "sh", directory))
    finish(node.command("sh", "-ec", _MAKE_CGROUPS, "sh", node.cgroup))
    for name, value in _KERNEL.items():
        file = directory / name.replace("/", ".")
        file.write_text(f"{value}\n")
        if Path("/proc/sys", name).exists():
            finish(node.command("mount", "--bind", file, f"/proc/sys/{name}"))
    ranges = [[{"subnet": f"10.244.{node.number}.0/24"}]]
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    (directory / "cni").mkdir()
    network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}
    (directory / "cni" / "pods.conflist").write_text(json.dumps(network))
    places = {"directory": directory, "sandbox": sandbox, "plugins": _PLUGINS}
    (directory / "containerd.toml").write_text(_CONTAINERD.format(**places))
    kubelet = {
        **_KUBELET,
        "address": node.host,
        "cgroupRoot": f"/{node.cgroup}",
        "containerRuntimeEndpoint": f"unix://{directory}/containerd.sock",
        "podLogsDir": f"{directory}/pods",
    }
    (directory / "kubelet-config.yaml").write_text(yaml.safe_dump(kubelet))


def _make_keys(cluster: Cluster) -> None:
    """Make the tokens of administrator and nodes, and the keys of the control plane."""
    directory = cluster.directory
    roles = {"admin": ("admin", "system:masters")}
    roles |= {node.name: (f"system:node:{node.name}", "system:nodes") for node in cluster.nodes}
    lines = []
    for name, (user, group) in roles.items():
        token = secrets.token_hex()
        lines.append(f'{token},{user},{user},"{group}"\n')
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(_kubeconfig(token)))
    (directory / "tokens.csv").write_text("".join(lines))
    key, public = directory / "accounts.key", directory / "accounts.pub"
    finish(["openssl", "genrsa", "-out", str(key), "2048"])
    finish(["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public)])


def _kubeconfig(token: str) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {
                    "server": f"https://{HOST}:{_API_PORT}",
                    "insecure-skip-tls-verify": True,
                },
            }
        ],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
        "current-context": "context",
    }


def _start_control_plane(cluster: Cluster) -> None:
    """Start the control plane on the first node."""
    directory, programs, node = cluster.directory, cluster.programs, cluster.nodes[0]
    etcd = f"http://127.0.0.1:{_ETCD_PORT}"
    admin = f"--kubeconfig={directory}/admin.yaml"
    node.start(
        "etcd",
        "etcd",
        f"--data-dir={directory}/etcd",
        f"--listen-client-urls={etcd}",
        f"--advertise-client-urls={etcd}",
        f"--listen-peer-urls=http://127.0.0.1:{_ETCD_PORT + 1}",
    )
    node.start(
        "apiserver",
        programs / "kube-apiserver",
        f"--etcd-servers={etcd}",
        f"--bind-address={HOST}",
        f"--advertise-address={HOST}",
        f"--secure-port={_API_PORT}",
        f"--cert-dir={directory}/api",
        f"--token-auth-file={directory}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        f"--service-cluster-ip-range={_SERVICES}",
        f"--service-account-key-file={directory}/accounts.pub",
        f"--service-account-signing-key-file={directory}/accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        "--kubelet-preferred-address-types=InternalIP",
    )
    wait_until(lambda: cluster.tried("kubectl", "get", "--raw=/readyz").stdout == "ok", cluster.explain)
    node.start(
        "controllers",
        programs / "kube-controller-manager",
        admin,
        f"--service-account-private-key-file={directory}/accounts.key",
        "--controllers=*,-node-ipam-controller",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--cert-dir={directory}/controllers",
    )
    node.start(
        "scheduler",
        programs / "kube-scheduler",
        admin,
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--cert-dir={directory}/scheduler",
        "--authentication-tolerate-lookup-failure",
    )


def _start(cluster: Cluster, node: Node) -> None:
    """Start what makes a node of the namespaces."""
    directory = node.directory
    node.start("containerd", "containerd", f"--config={directory}/containerd.toml")
    node.start(
        "proxy",
        cluster.programs / "kube-proxy",
        f"--kubeconfig={cluster.directory}/admin.yaml",
        f"--hostname-override={node.name}",
        f"--bind-address={node.host}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={_PODS}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    )
    node.start(
        "kubelet",
        cluster.programs / "kubelet",
        f"--config={directory}/kubelet-config.yaml",
        f"--kubeconfig={cluster.directory}/{node.name}.yaml",
        f"--hostname-override={node.name}",
        f"--node-ip={node.host}",
        f"--root-dir={directory}/kubelet",
        f"--cert-dir={directory}/kubelet/pki",
    )


def _remove_cgroups() -> None:
    """Remove the cgroups of pods, whose processes have ended."""
    hierarchies = Path("/sys/fs/cgroup")
    for root in (*hierarchies.glob(f"*/{_CGROUPS}-*"), *hierarchies.glob(f"{_CGROUPS}-*")):
        for directory in sorted(root.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
            directory.rmdir()
        root.rmdir()
