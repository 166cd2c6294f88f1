"""Infra-envs of a double of assisted-service: each answer has a fresh token, and is kept."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import attrs

from tests.acceptance.upstream import Reply, Upstream
from tests.server.standalone.faults import agent_config
from tests.server.standalone.tokens import TokenSigner

if TYPE_CHECKING:
    import http.server

_SIGNER = TokenSigner()


@attrs.define(eq=False)
class InfraEnv:
    """An infra-env whose answers are counted.

    Attributes:
        infra_env_id: its identifier.
        name: is in its Ignition config; another one is another config.
        text: is in it, too.
        delay_seconds: before each answer.
        answers: the configs that were answered, and when (seconds of the monotonic clock).
    """

    infra_env_id: str = ""
    name: str = "core"
    text: str = "x" * 20_000
    delay_seconds: float = 0.0
    answers: list[tuple[float, bytes]] = attrs.field(factory=list)
    asked: threading.Event = attrs.field(factory=threading.Event)

    def __call__(self, _: http.server.BaseHTTPRequestHandler) -> Reply:
        """Answer with a token of this answer's own."""
        config = {
            "ignition": {"version": "3.2.0"},
            "passwd": {"users": [{"name": self.name}]},
            # Behind the token there is enough that its checksum is in another range than it is.
            "storage": {"files": [{"path": "/etc/x", "contents": {"source": f"data:,{self.text}"}}]},
            **agent_config(_SIGNER.sign(self.infra_env_id)),
        }
        body = json.dumps(config).encode()
        self.answers.append((time.monotonic(), body))
        self.asked.set()
        return Reply(body, after_seconds=self.delay_seconds)

    @property
    def configs(self) -> set[bytes]:
        """All configs that were answered."""
        return {body for _, body in self.answers}


def register(upstream: Upstream, **attributes: Any) -> InfraEnv:
    """Register an infra-env."""
    infra_env = InfraEnv(**attributes)
    infra_env.infra_env_id = upstream.register(infra_env)
    return infra_env
