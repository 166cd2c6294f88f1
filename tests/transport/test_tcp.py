from __future__ import annotations

import socket

from image_service.transport.tcp import UNSENT_BYTES, bind


def test_accepted_connection_limits_its_unsent_bytes_in_the_kernel() -> None:
    with bind(0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES
