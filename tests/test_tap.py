"""What the composition root does before anything else runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from image_service.transport.tcp import UNSENT_BYTES, bind


def test_client_that_does_not_read_holds_little_kernel_memory() -> None:
    with bind(0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES


def serve(data_dir: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "image_service.cli", "serve", "--standalone"]
    settings = {
        "DATA_DIR": str(data_dir),
        "DRAIN_DELAY": "0",
        "LISTEN_PORT": str(port),
        "STANDALONE_LISTEN": "127.0.0.1:0",
    }
    return subprocess.Popen(
        command, env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_port_in_use_ends_the_start_with_one_line(tmp_path: Path) -> None:
    with bind(0) as other:
        port = other.getsockname()[1]
        with serve(tmp_path, port) as process:
            output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"port {port}: Address already in use" in output
    assert "Traceback" not in output


def test_sigterm_at_any_moment_exits_with_0(tmp_path: Path) -> None:
    """From the moment at which the console script runs; until then Python itself is not ready."""
    with serve(tmp_path, 0) as process:
        while not handles_sigterm(process.pid):
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


def handles_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in status if line.startswith("SigCgt:")).split()[1]
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))
