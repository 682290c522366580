"""What the log of a cluster tells of its workers."""

from __future__ import annotations

import logging

import pytest

from asyncpool.cluster._life_log import LifeLog
from asyncpool.events import Exited, Ready, Resized, Retiring, Spawned

GOES = (
    "cluster app: worker 71 in slot 1 takes no more connections: "
    "there are more workers than wanted"
)


def test_it_tells_who_comes_who_goes_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncpool")
    log = LifeLog("cluster app")
    for event in (
        Spawned(0, 1, 70),
        Ready(0, 1, 70, 0.1234),
        Ready(1, 1, 71, 1.0),
        Retiring(0, 1, "roll"),
        Retiring(1, 1, "resize"),
        Exited(0, 1, 70),
        Exited(1, 1, 71, signal="SIGKILL", detail="somebody wanted it"),
        Retiring(1, 2, "of one that was never ready"),
        Exited(1, 2, 72),
        Ready(2, 5, 73, 1.0),
        Retiring(2, 5, "something of its own"),
        Ready(3, 1, 74, 1.0),
        Retiring(3, 1, "request_replacement(): it has had: enough"),
        Resized(3),
    ):
        log.tell(event)
    assert caplog.messages == [
        "cluster app: worker 70 in slot 0 is ready after 0.12 s",
        "cluster app: worker 71 in slot 1 is ready after 1.00 s",
        "cluster app: worker 70 in slot 0 takes no more connections: a reload replaces it",
        GOES,
        "cluster app: worker 70 in slot 0 has ended",
        "cluster app: worker 71 in slot 1 has ended: somebody wanted it",
        "cluster app: worker 73 in slot 2 is ready after 1.00 s",
        "cluster app: worker 73 in slot 2 takes no more connections: something of its own",
        "cluster app: worker 74 in slot 3 is ready after 1.00 s",
        (
            "cluster app: worker 74 in slot 3 takes no more connections: "
            "it has asked for a successor: it has had: enough"
        ),
    ]
