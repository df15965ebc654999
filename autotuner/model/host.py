"""Host: where an engine is served from, how it is reached, and what must be as before when tuning ends."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from autotuner.model.document import Document, Name, Scalar, Strict

SecretRef = Annotated[str, StringConstraints(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:/.+)$")]
"""Where a secret is found, never its value: ``env:NAME`` or ``file:/absolute/path``."""

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ClockTime = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


LAST_PORT = 65535
_LONGEST_PORT = 5


class LocalTransport(Strict):
    """The tuner runs on the host itself."""

    type: Literal["local"]


class SshTransport(Strict):
    """The tuner reaches the host over SSH. What is not given here is taken from ``~/.ssh/config``, then from the defaults of ssh."""

    type: Literal["ssh"]
    hostname: str = Field(description="A name, an address, or an alias of ~/.ssh/config.")
    user: str | None = Field(default=None, description="The tuner's own user name by default.")
    port: int | None = Field(default=None, ge=1, le=LAST_PORT, description="22 by default.")
    identity_file: str | None = Field(default=None, description="Private key; with one given no other key is offered.")
    passphrase: SecretRef | None = Field(default=None, description="Where the key's passphrase is found on the controller.")
    agent: bool = Field(default=False, description="Offer the keys of the running ssh-agent, too.")
    password: SecretRef | None = Field(default=None, description="Where the password is found on the controller, for hosts without keys.")
    known_hosts: str | None = Field(default=None, description="~/.ssh/known_hosts by default. Only keys that stand there are accepted.")
    proxy_jump: str | None = Field(default=None, description="Bastions to go through: [user@]host[:port], several with commas.")
    config_file: str | None = Field(default=None, description="~/.ssh/config by default; `none` to read none.")


def bastions(jumps: str) -> tuple[str, ...]:
    """The machines of a ``proxy_jump``, one by one as they are written; ``none`` is none."""
    hops = tuple(hop.strip() for hop in jumps.split(",") if hop.strip())
    return () if hops == ("none",) else hops


def read_bastion(text: str) -> tuple[str, str, str]:
    """User, host and port of ``[user@]host[:port]`` as they are written, empty where they are not."""
    user, _, rest = text.removeprefix("ssh://").rstrip("/").rpartition("@")
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        return user, host, port.removeprefix(":")
    if rest.count(":") == 1:
        host, _, port = rest.partition(":")
        return user, host, port
    return user, rest, ""


def is_port(text: str) -> bool:
    """Whether this is the number of a TCP port."""
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_PORT and 1 <= int(text) <= LAST_PORT


class EngineInstall(Strict):
    """The engine as it is installed on the host."""

    name: Literal["sglang", "vllm"]
    python: str = Field(default="python3", description="Interpreter of the engine's virtual environment.")
    cwd: str = Field(default="/", description="Working directory of the server.")
    env: dict[EnvName, str] = Field(default_factory=dict, description="Environment added for every launch.")
    args: tuple[str, ...] = Field(default=(), description="Arguments appended to every launch, verbatim.")
    dialect: Name | None = Field(default=None, description="Flags of a patched build; probed when not given.")


class Model(Strict):
    """What is served. ``path`` and ``drafter`` are folders on the host in the Hugging Face layout."""

    path: str
    drafter: str | None = None
    served_name: str | None = None
    context_length: int | None = Field(default=None, ge=1, description="Served context in tokens; the model's own if not given.")


class ProductionUnit(Strict):
    """Production is a systemd unit."""

    unit: str


class ProductionProcess(Strict):
    """Production is a plain process that is started again with this command line."""

    argv: tuple[str, ...] = Field(min_length=1)
    env: dict[EnvName, str] = Field(default_factory=dict)
    cwd: str = "/"


class ProductionContainer(Strict):
    """Production is a container."""

    container: str


class Service(Strict):
    """How servers are started and stopped, and what serves when nothing is tuned.

    ``production: auto`` (process manager) takes whatever listens on the endpoint's port and restores its command line, read from
    ``/proc``; ``none`` says that nothing serves and nothing is to be restored.
    """

    manager: Literal["process", "systemd", "container"] = "process"
    production: Literal["auto", "none"] | ProductionUnit | ProductionProcess | ProductionContainer = "auto"
    conflicts: tuple[str, ...] = Field(default=(), description="Other units or containers to stop while tuning and start again after.")

    @model_validator(mode="after")
    def _production_fits_manager(self) -> Service:
        needs = {ProductionUnit: "systemd", ProductionProcess: "process", ProductionContainer: "container"}
        wanted = needs.get(type(self.production))  # type: ignore[arg-type]
        if wanted is not None and wanted != self.manager:
            msg = f"production of this kind needs manager: {wanted}, but manager is {self.manager}"
            raise ValueError(msg)
        return self


class Endpoint(Strict):
    """Where the server listens. ``address`` is what the server binds: a loopback address is reached from the host itself only."""

    address: str = "127.0.0.1"
    port: int = Field(default=30000, ge=1, le=LAST_PORT)


class Load(Strict):
    """Where load is driven from. ``auto``: from the controller where its TCP connections reach the port, else on the host itself."""

    source: Literal["auto", "controller", "host"] = Field(default="auto", alias="from")


class Window(Strict):
    """When the host may be tuned; ``end`` before ``start`` means the next day."""

    start: ClockTime
    end: ClockTime
    timezone: str = "UTC"


class Limits(Strict):
    """Patience and reserves. Every default is above the slowest case seen on real hosts."""

    ready_timeout_s: float = Field(default=1800.0, gt=0)
    """The longest launch seen took 1209 s for 600 GB of weights from cold storage."""
    stage_timeout_s: float = Field(default=900.0, gt=0)
    """How long a launch may print no new progress marker before it counts as hung."""
    stop_timeout_s: float = Field(default=60.0, gt=0)
    """After this an engine that ignores SIGTERM is killed."""
    request_timeout_s: float = Field(default=120.0, gt=0)
    """How long one request may stall without a byte."""
    lease_ttl_s: float = Field(default=180.0, ge=3.0)
    """The host brings production back by itself when the tuner was not heard of for so long."""
    disk_free_gib: float = Field(default=5.0, ge=0)
    """Compilation caches, logs and records need room; a full disk corrupts what others write."""


class SimulatedGpu(Strict):
    """Hardware of a simulated host: the one case in which it is typed in."""

    name: str
    count: int = Field(default=8, ge=1, le=64)
    memory_gib: float = Field(gt=0)
    sm: int = Field(ge=50, description="Compute capability times ten, as in sm_120.")
    link: Literal["pcie", "nvlink"]
    driver: str = "580.0"


class SimulatedFault(Strict):
    """A fault that a simulated server is given, for tests and drills of what the tuner does about it."""

    kind: Literal["die", "hang", "http-500", "in-band-error", "malformed-stream", "never-ready", "slow-start"]
    """``die`` ends the server, ``hang`` stalls requests; ``in-band-error`` and ``malformed-stream`` spoil answers whose status is 200, in
    one piece or streamed. The first five strike requests, the last two the start of the server."""
    after_requests: int = Field(default=0, ge=0, description="Completion requests that are served before it strikes.")
    requests: int | None = Field(default=1, ge=1, description="How many requests it strikes; null for all that follow.")
    seconds: float = Field(default=0.0, ge=0, description="What slow-start adds to the launch.")
    launch: str | None = Field(default=None, description="Only launches whose name contains this.")


class SimulatedAnswer(Strict):
    """What a simulated server says to some prompts, for tests and drills of what the tuner does about answers."""

    asked: str = Field(min_length=1, description="Prompts that contain this.")
    answer: str = Field(min_length=1, description="The whole answer; cut off where a request allows fewer tokens.")
    launch: str | None = Field(default=None, description="Only launches whose name contains this.")


class Simulate(Strict):
    """Serve with the simulated engine instead of a real one; every result is marked ``simulated: true``."""

    profile: Name = Field(description="Calibrated performance profile shipped with the package.")
    gpu: SimulatedGpu
    launch_seconds: float = Field(default=1.0, ge=0, description="Wall-clock seconds that a simulated launch takes.")
    noise: float = Field(default=0.01, ge=0, le=0.5, description="Standard deviation of the multiplicative noise.")
    seed: int = 0
    faults: tuple[SimulatedFault, ...] = Field(default=(), description="Faults to inject; none unless something is being tested.")
    answers: tuple[SimulatedAnswer, ...] = Field(
        default=(), description="Answers to certain prompts, the first that fits; all others get words without a meaning."
    )


class Host(Document):
    """A GPU host (``hosts/NAME.yaml``). Hardware is discovered, never typed in, except on simulated hosts."""

    kind: Literal["Host"]
    transport: LocalTransport | SshTransport = Field(discriminator="type")
    engine: EngineInstall
    model: Model
    service: Service = Service()
    endpoint: Endpoint = Endpoint()
    load: Load = Load()
    window: Window | None = None
    secrets: dict[EnvName, SecretRef] = Field(default_factory=dict, description="Environment of the server that holds secrets.")
    limits: Limits = Limits()
    study: Name | None = Field(default=None, description="Hosts of one group share a study.")
    expect: dict[str, Scalar] = Field(default_factory=dict, description="Facts to check against what is discovered, e.g. gpus: 8.")
    simulate: Simulate | None = None

    @property
    def base_url(self) -> str:
        """Root of the served API as the host itself reaches it, without a trailing slash."""
        return f"http://{bracketed(LOOPBACK.get(self.endpoint.address, self.endpoint.address))}:{self.endpoint.port}"

    @property
    def study_group(self) -> str:
        """What the study is found by: the group where one is named, else the host."""
        return self.study or self.name


LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
"""Where a server that binds every address is reached on its own machine."""


def bracketed(address: str) -> str:
    """An address as it stands in a URL."""
    return f"[{address}]" if ":" in address else address


_SECRET_LIKE = re.compile(r"(TOKEN|SECRET|PASSWORD|API_?KEY)", re.IGNORECASE)


def secret_like(name: str) -> bool:
    """Whether an environment variable of this name usually holds a secret (such values belong under ``secrets:``)."""
    return _SECRET_LIKE.search(name) is not None
