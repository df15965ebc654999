"""A listener is a unit's when its process is in that unit's control group: seen on real sockets of this very process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from autotuner.services.onhost import groups, listening, revertable, sockets

UNIT = "/system.slice/prod.service"
"""A control group in which nobody is."""


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def own() -> str:
    return groups.control_group(os.getpid())


def test_a_listener_is_of_the_group_of_its_process_and_of_no_other(port: int, own: str) -> None:
    assert (listening.within(port, own), listening.outside(port, own)) == (True, [])
    assert (listening.within(port, UNIT), listening.outside(port, UNIT)) == (False, [os.getpid()])


def test_a_unit_without_a_control_group_listens_nowhere(port: int) -> None:
    assert (listening.within(port, ""), listening.outside(port, ""), listening.elsewhere("")) == (False, [os.getpid()], [])


def test_the_ports_of_a_process_are_those_on_which_it_listens(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        ports = sockets.ports_of([os.getpid()])
        assert port in ports
        assert link.getsockname()[1] not in ports
    assert sockets.ports_of([]) == []


def test_why_a_unit_does_not_answer_names_what_does(port: int, own: str) -> None:
    assert listening.why_silent(own, port, "/health") == f"does not answer on port {port}: it listens there, and /health does not say 200"
    said = listening.why_silent(UNIT, port, "/health")
    assert said.startswith(f"does not answer on port {port}: it listens on no port, and port {port} is held by ")
    assert said.endswith(f"(pid {os.getpid()})")


def test_a_port_that_nobody_has_is_said_to_be_free(port: int, own: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
    said = listening.why_silent(own, free, "/health")
    assert said.endswith(f", and nothing listens on port {free}")
    assert str(port) in said.partition(", and ")[0], "where it listens instead"


def test_the_hint_names_the_port_of_production_where_it_has_one() -> None:
    assert "`port: 30000`" in revertable.elsewhere("prod.service (pid 7)", "does not answer", [30000]).hint
    for ports in ([], [30000, 30002]):
        assert "correct endpoint.port" in revertable.elsewhere("prod.service (pid 7)", "does not answer", ports).hint
