"""A Kubernetes of one node, in namespaces of its own: nothing of it is left when its first process ends.

What pods reach runs in the network namespace too (`Cluster.inside`), and listens at `HOST`.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import yaml

from tests.acceptance.clients import missing, needs_client
from tests.jobs.running_role import wait_until
from tests.packaging.conftest import CHECKOUT
from tests.packaging.containers import finish
from tests.processes import children_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HOST = "172.31.77.1"
"""The node's address, by which pods reach what listens there."""

NODE = "node"
_PODS, _SERVICES = "10.244.0.0/24", "10.96.0.0/16"
_CGROUP = "image-service-cluster-test"
_ETCD_PORT, _API_PORT, _KUBELET_PORT = 2379, 6443, 10250
_CLONE_NEWNET = 0x40000000

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
_CNI = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": _PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}
_PLUGINS = "/usr/lib/cni"
_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "address": HOST,
    "port": _KUBELET_PORT,
    "healthzPort": 0,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "cgroupRoot": f"/{_CGROUP}",
    "failSwapOn": False,
    "oomScoreAdj": 0,
    "protectKernelDefaults": True,
    # Of the disk that the tests share with everything else.
    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    "imageGCHighThresholdPercent": 100,
}
_ROLES = {"admin": "system:masters", f"system:node:{NODE}": "system:nodes"}


@attrs.frozen
class Cluster:
    """The running cluster.

    Args:
        directory: of its files.
        programs: the directory of Kubernetes' programs.
        first: the first process of its namespaces.
        processes: that end with it.
    """

    directory: Path
    programs: Path
    first: int
    processes: ExitStack

    def command(self, *command: str | Path) -> list[str]:
        """Return the command line that runs a command in the namespaces."""
        entered = ("nsenter", f"--target={self.first}", "--mount", "--net", "--pid", "--")
        return [*entered, *map(str, command)]

    def tried(
        self, program: str, *arguments: str | Path, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl or helm to its end, with a text as its input."""
        client = (self.programs / program, f"--kubeconfig={self.directory}/admin.yaml")
        command = self.command(*client, *arguments)
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

    def load(self, archive: Path) -> None:
        """Give the node the images of an archive."""
        containerd = ("ctr", f"--address={self.directory}/containerd.sock", "--namespace=k8s.io")
        finish(self.command(*containerd, "images", "import", archive))

    def send(self, name: str, container: str) -> None:
        """Send a signal to the first process of a container, as the node does."""
        containerd = ("ctr", f"--address={self.directory}/containerd.sock", "--namespace=k8s.io")
        tasks = finish(self.command(*containerd, "tasks", "list"))
        (process,) = (line.split()[1] for line in tasks.splitlines() if line.startswith(container))
        finish(self.command("kill", f"-{name}", process))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Move this thread, and what it starts, into the network namespace until the block ends."""
        with ExitStack() as stack:
            own, theirs = (
                stack.enter_context(Path("/proc", str(process), "ns/net").open("rb"))
                for process in ("thread-self", self.first)
            )
            _set_namespace(theirs.fileno())
            try:
                yield
            finally:
                _set_namespace(own.fileno())

    def start(self, name: str, *command: str | Path) -> None:
        """Start a process that ends with the namespaces; its log is a file of its name."""
        with (self.directory / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                self.command(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.processes.enter_context(started)

    def explain(self) -> str:
        """Return the last lines of each log."""
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


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
    options = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    namespaces = ["unshare", *options, sys.executable, "-c", _FIRST]
    with ExitStack() as stack:
        stack.callback(_remove_cgroups)
        processes = stack.enter_context(ExitStack())
        outer = stack.enter_context(subprocess.Popen(namespaces, stdout=subprocess.PIPE, text=True))
        assert outer.stdout is not None
        assert outer.stdout.readline() == "up\n"
        (first,) = children_of(outer.pid)
        stack.callback(os.kill, first, signal.SIGKILL)  # it has ended when all others in its namespace have
        cluster = Cluster(directory, programs, first, processes)
        _prepare(cluster, _PLUGINS, sandbox)
        _start(cluster)
        cluster.load(archive)
        yield cluster


def _prepare(cluster: Cluster, plugins: str, sandbox: str) -> None:
    """Make network, cgroups and files."""
    directory = cluster.directory
    finish(cluster.command("sh", "-ec", _NETWORK))
    finish(cluster.command("sh", "-ec", _FILES, "sh", directory))
    finish(cluster.command("sh", "-ec", _MAKE_CGROUPS, "sh", _CGROUP))
    for name, value in _KERNEL.items():
        file = directory / name.replace("/", ".")
        file.write_text(f"{value}\n")
        if Path("/proc/sys", name).exists():
            finish(cluster.command("mount", "--bind", file, f"/proc/sys/{name}"))
    (directory / "cni").mkdir()
    (directory / "cni" / "pods.conflist").write_text(json.dumps(_CNI))
    places = {"directory": directory, "sandbox": sandbox, "plugins": plugins}
    (directory / "containerd.toml").write_text(_CONTAINERD.format(**places))
    socket = f"unix://{directory}/containerd.sock"
    kubelet = {**_KUBELET, "containerRuntimeEndpoint": socket, "podLogsDir": f"{directory}/pods"}
    (directory / "kubelet-config.yaml").write_text(yaml.safe_dump(kubelet))
    tokens = {name: secrets.token_hex() for name in _ROLES}
    lines = [f'{tokens[name]},{name},{name},"{group}"\n' for name, group in _ROLES.items()]
    (directory / "tokens.csv").write_text("".join(lines))
    for config, name in zip(("admin.yaml", "kubelet.yaml"), _ROLES, strict=True):
        (directory / config).write_text(yaml.safe_dump(_kubeconfig(tokens[name])))
    finish(["openssl", "genrsa", "-out", f"{directory}/accounts.key", "2048"])
    finish(
        ["openssl", "rsa", "-in", f"{directory}/accounts.key", "-pubout", "-out", f"{directory}/accounts.pub"]
    )


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


def _start(cluster: Cluster) -> None:
    """Start the control plane and the node; wait until the node is ready."""
    directory, programs = cluster.directory, cluster.programs
    etcd = f"http://127.0.0.1:{_ETCD_PORT}"
    admin = f"--kubeconfig={directory}/admin.yaml"
    cluster.start("containerd", "containerd", f"--config={directory}/containerd.toml")
    cluster.start(
        "etcd",
        "etcd",
        f"--data-dir={directory}/etcd",
        f"--listen-client-urls={etcd}",
        f"--advertise-client-urls={etcd}",
        f"--listen-peer-urls=http://127.0.0.1:{_ETCD_PORT + 1}",
    )
    cluster.start(
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
    cluster.start(
        "controllers",
        programs / "kube-controller-manager",
        admin,
        f"--service-account-private-key-file={directory}/accounts.key",
        "--controllers=*,-node-ipam-controller",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--cert-dir={directory}/controllers",
    )
    cluster.start(
        "scheduler",
        programs / "kube-scheduler",
        admin,
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--cert-dir={directory}/scheduler",
        "--authentication-tolerate-lookup-failure",
    )
    cluster.start(
        "proxy",
        programs / "kube-proxy",
        admin,
        f"--hostname-override={NODE}",
        f"--bind-address={HOST}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={_PODS}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    )
    cluster.start(
        "kubelet",
        programs / "kubelet",
        f"--config={directory}/kubelet-config.yaml",
        f"--kubeconfig={directory}/kubelet.yaml",
        f"--hostname-override={NODE}",
        f"--node-ip={HOST}",
        f"--root-dir={directory}/kubelet",
        f"--cert-dir={directory}/kubelet/pki",
    )
    is_ready = ("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=10s")
    wait_until(lambda: cluster.tried("kubectl", *is_ready).returncode == 0, cluster.explain)


def _remove_cgroups() -> None:
    """Remove the cgroups of pods, whose processes have ended."""
    for root in (*Path("/sys/fs/cgroup").glob(f"*/{_CGROUP}"), Path("/sys/fs/cgroup", _CGROUP)):
        for directory in sorted(root.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
            directory.rmdir()
        if root.exists():
            root.rmdir()
