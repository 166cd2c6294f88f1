"""The run of a load test."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock

from image_service.tools.loadtest.traffic.dialer import Dialer
from image_service.tools.loadtest.traffic.plan import Plan, parse_target
from image_service.tools.loadtest.traffic.profiles import Profile
from image_service.tools.loadtest.traffic.run import Run
from image_service.tools.loadtest.traffic.tls import https_policy


def test_interrupted_run_succeeds_while_clients_connect() -> None:
    reactor: Any = MemoryReactorClock()  # connections stay pending
    target = parse_target("http://127.0.0.1/x.iso")
    plan = Plan(targets=(target,), profile=Profile.MOUNT, clients=1, seconds=10.0)
    dialer = Dialer(
        reactor,
        {target.origin: ["127.0.0.1"]},
        https_policy(insecure=True),
        clock=reactor.seconds,
        timeout_seconds=60,
    )
    run = Run(reactor, plan, dialer, lambda _: None, reactor.seconds)
    results: list[object] = []
    Deferred.fromCoroutine(run.run()).addBoth(results.append)
    reactor.advance(1)
    assert len(reactor.tcpClients) == 1
    run.interrupt()
    assert results == [None]
    assert run.was_interrupted
