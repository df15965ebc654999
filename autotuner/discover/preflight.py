"""Everything that can be known to be wrong before the first launch; all of it at once, nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Callable

from autotuner.discover import gpus
from autotuner.discover.discovery import disk_free
from autotuner.discover.flags import check_flags
from autotuner.discover.ports import Listener, listener_on, looks_like_engine
from autotuner.discover.tenancy import tenant_of
from autotuner.errors import AutotunerError
from autotuner.model.document import API_VERSION
from autotuner.model.facts import DrafterFacts, HostFacts
from autotuner.model.host import Host
from autotuner.model.recommendation import Check
from autotuner.model.space import Categorical, SearchSpace
from autotuner.services.hostside import HostSide
from autotuner.transports.base import Transport

SHARED_MEMORY_GIB = 1.0
"""What the ranks of one engine exchange through ``/dev/shm``, per GPU, when there are several."""

_TIMEOUT_S = 60.0
_BUILD_PROBE = (
    "import json, os, shutil, sysconfig; p = sysconfig.get_paths(); "
    "print(json.dumps({'header': any(os.path.exists(os.path.join(p[k], 'Python.h')) for k in ('include', 'platinclude')), "
    "'include': p['include'], 'nvcc': shutil.which('nvcc') or '', 'cuda_home': os.environ.get('CUDA_HOME', '')}))"
)


def preflight(host: Host, facts: HostFacts, transport: Transport, *, space: SearchSpace | None = None) -> tuple[Check, ...]:
    """One check a subject, failures with a hint. With a ``space`` its flags and what it asks of the drafter are checked, too."""
    try:
        host_side = HostSide(transport, pythons=("python3", host.engine.python))
        state = host_side.state
        tenant = tenant_of(host, host_side)
        listener = listener_on(host.endpoint.port, host_side)
    except AutotunerError as error:
        return (Check(name="state-folder", status="fail", detail=error.message, hint=error.hint),)
    if tenant is not None:  # what it does there would look like foreign processes
        return (Check(name="lease", status="fail", detail=f"{host.name} is being tuned by {tenant}", hint="wait until that has ended"),)
    parts: list[Callable[[], tuple[Check, ...]]] = [
        lambda: (_state_folder(state, transport),),
        lambda: (_disk(host, state, transport),),
        lambda: (_port(host, listener),),
        lambda: _drafter(facts, host, space),
        lambda: check_flags(host, facts.build, space),
    ]
    if host.simulate is None:
        parts += [
            lambda: (_gpus(facts),),
            lambda: (_gpu_processes(host, listener, transport),),
            lambda: _shared_memory(facts, transport),
            lambda: _compilers(host, transport),
        ]
    return tuple(check for part in parts for check in _guarded(part))


def _guarded(part: Callable[[], tuple[Check, ...]]) -> tuple[Check, ...]:
    try:
        return part()
    except AutotunerError as error:
        return (Check(name="host", status="fail", detail=error.message, hint=error.hint),)


def _state_folder(state: str, transport: Transport) -> Check:
    probe = f"{state}/.preflight"
    try:
        transport.write(probe, b"x" * 4096, mode=0o600)
        transport.remove(probe)
    except AutotunerError as error:
        return Check(name="state-folder", status="fail", detail=error.message, hint=error.hint)
    return Check(name="state-folder", status="pass", detail=f"{state} can be written")


def _disk(host: Host, state: str, transport: Transport) -> Check:
    wanted, free = host.limits.disk_free_gib, disk_free(transport, state)
    if free < wanted:
        return Check(
            name="disk",
            status="fail",
            detail=f"{free:.1f} GiB free at {state}, limits.disk_free_gib is {wanted:g}",
            hint="free some space (engine caches under ~/.cache are a good place to look), or lower limits.disk_free_gib",
        )
    return Check(name="disk", status="pass", detail=f"{free:.0f} GiB free at {state}")


def _port(host: Host, listener: Listener) -> Check:
    port, owner = host.endpoint.port, listener.owner
    if not listener.listening:
        return Check(name="port", status="pass", detail=f"nothing listens on port {port}")
    if owner is not None and owner.left_by_tuner:
        detail = f"{owner} was left on port {port} by a tuner that died; the next start of the tuner stops it"
        return Check(name="port", status="warning", detail=detail)
    if owner is None or not looks_like_engine(owner.argv, host):
        return Check(
            name="port",
            status="fail",
            detail=f"port {port} is held by {listener}, which is not {host.engine.name}",
            hint="choose another endpoint.port, or stop that process yourself: it is never stopped from here",
        )
    if host.service.production == "none":
        return Check(
            name="port",
            status="fail",
            detail=f"{owner} serves on port {port}, but service.production is none",
            hint="write `production: auto` to have it stopped while tuning and brought back, or stop it yourself",
        )
    if owner.problems:
        return Check(
            name="port",
            status="fail",
            detail=f"{owner} could not be brought back: {'; '.join(owner.problems)}",
            hint="mend that, or write service.production with argv, env and cwd",
        )
    return Check(name="port", status="pass", detail=f"{owner} serves on port {port}; it is stopped while tuning and brought back")


def _gpus(facts: HostFacts) -> Check:
    if not facts.gpus:
        return Check(
            name="gpus", status="fail", detail="no NVIDIA GPU was found", hint="is the driver installed? run nvidia-smi on the host"
        )
    first = facts.gpus[0]
    names = sorted({gpu.name for gpu in facts.gpus})
    if len(names) > 1:
        hint = "set CUDA_VISIBLE_DEVICES in engine.env to those of one kind"
        return Check(name="gpus", status="warning", detail=f"GPUs of several kinds: {', '.join(names)}", hint=hint)
    return Check(
        name="gpus",
        status="pass",
        detail=f"{len(facts.gpus)} × {first.name}, {first.memory_gib:.0f} GiB, {facts.link}, driver {facts.driver}",
    )


def _gpu_processes(host: Host, listener: Listener, transport: Transport) -> Check:
    done = transport.run(gpus.PROCESSES_COMMAND, timeout_s=_TIMEOUT_S)
    ours = set(listener.owner.tree) if listener.owner and looks_like_engine(listener.owner.argv, host) else set()
    foreign = [process for process in gpus.parse_processes(done.stdout) if process.pid not in ours]
    if not foreign:
        return Check(name="gpu-processes", status="pass", detail="no foreign process uses a GPU")
    named = ", ".join(f"{process.name} (pid {process.pid}, {process.memory_mib or '?'} MiB)" for process in foreign)
    visible = all(transport.exists(f"/proc/{process.pid}") for process in foreign)
    return Check(
        name="gpu-processes",
        status="fail" if visible else "warning",
        detail=f"foreign processes use the GPUs: {named}",
        hint="stop them: what they take changes every number" if visible else "they run outside of this container: check on its host",
    )


def _shared_memory(facts: HostFacts, transport: Transport) -> tuple[Check, ...]:
    if len(facts.gpus) <= 1:
        return ()
    wanted, free = SHARED_MEMORY_GIB * len(facts.gpus), disk_free(transport, "/dev/shm")  # noqa: S108 - asked about, not written
    if free >= wanted:
        return (Check(name="shared-memory", status="pass", detail=f"{free:.0f} GiB free at /dev/shm"),)
    detail = f"{free:.2f} GiB free at /dev/shm, {len(facts.gpus)} ranks want about {wanted:g}"
    return (
        Check(name="shared-memory", status="warning", detail=detail, hint="start the container with --ipc=host or a larger --shm-size"),
    )


def _drafter(facts: HostFacts, host: Host, space: SearchSpace | None) -> tuple[Check, ...]:
    if host.engine.name != "sglang" or (facts.drafter is None and space is None):
        return ()
    from autotuner.engines.sglang.drafter import check_drafter  # noqa: PLC0415 - other engines do without

    return check_drafter(facts.drafter, facts.model, space or _drafting_space(facts.drafter))


def _drafting_space(drafter: DrafterFacts | None) -> SearchSpace:
    """What the host's drafter is for, where no search space was named."""
    return SearchSpace.model_validate(
        {
            "apiVersion": API_VERSION,
            "kind": "SearchSpace",
            "metadata": {"name": "drafter", "description": drafter.path if drafter else ""},
            "engine": "sglang",
            "parameters": {"spec": Categorical(type="categorical", choices=("dflash",))},
        }
    )


def _compilers(host: Host, transport: Transport) -> tuple[Check, ...]:
    """Engines compile kernels at the first launch; what is missing shows up as a crash minutes into it."""
    done = transport.run((host.engine.python, "-c", _BUILD_PROBE), timeout_s=_TIMEOUT_S, env=host.engine.env)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return (Check(name="compilers", status="warning", detail=f"{host.engine.python} cannot be asked: {done.stderr.strip()[-200:]}"),)
    header = Check(name="python-headers", status="pass", detail=f"{found['include']}/Python.h is there")
    if not found["header"]:
        hint = "install python3-dev of that version, or set CPATH in engine.env: kernels are compiled at the first launch"
        header = Check(name="python-headers", status="warning", detail=f"{found['include']}/Python.h is missing", hint=hint)
    where = found["nvcc"] or (found["cuda_home"] if transport.exists(f"{found['cuda_home']}/bin/nvcc") else "")
    where = where or ("/usr/local/cuda" if transport.exists("/usr/local/cuda/bin/nvcc") else "")
    if where:
        return (header, Check(name="cuda-toolkit", status="pass", detail=where))
    hint = "only some kernels need it; if a launch fails with CUDA_HOME or nvcc in its log, install the toolkit of the driver's version"
    return (header, Check(name="cuda-toolkit", status="warning", detail="nvcc was not found", hint=hint))
