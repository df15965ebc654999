"""The running ssh-agent: whether there is one, whether it answers, and how many keys it holds."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

_TIMEOUT_S = 5.0
_LIST = struct.pack(">IB", 1, 11)
"""SSH_AGENTC_REQUEST_IDENTITIES of draft-ietf-sshm-ssh-agent."""
_LISTED = 12
"""SSH_AGENT_IDENTITIES_ANSWER, followed by the number of keys."""
_HEAD = struct.Struct(">IBI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What was found at ``SSH_AUTH_SOCK``."""

    keys: int
    """0 also when there is no agent, or it does not answer."""
    state: str
    """The same in words."""


def find() -> Agent:
    """Ask the agent, with patience for a few seconds; never raises."""
    path = os.environ.get("SSH_AUTH_SOCK")
    if not path:
        return Agent(keys=0, state="SSH_AUTH_SOCK is not set, so no agent is known here")
    try:
        number = _asked(path)
    except OSError as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return Agent(keys=0, state=f"the agent at {path} (SSH_AUTH_SOCK) does not answer: {why}")
    counted = {0: "no keys", 1: "1 key"}.get(number, f"{number} keys")
    return Agent(keys=number, state=f"the agent at {path} (SSH_AUTH_SOCK) holds {counted}")


def _asked(path: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(_TIMEOUT_S)
        agent.connect(path)
        agent.sendall(_LIST)
        answer = b""
        while len(answer) < _HEAD.size:
            piece = agent.recv(_HEAD.size - len(answer))
            if not piece:
                raise ConnectionError("it closed the connection")
            answer += piece
    _, kind, number = _HEAD.unpack(answer)
    if kind != _LISTED:
        raise ConnectionError("it does not list its keys")
    return int(number)
