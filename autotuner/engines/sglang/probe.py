"""What SGLang build is installed: asked of its own interpreter, once, through the transport."""

from __future__ import annotations

import json
from collections.abc import Sequence

from autotuner.engines.sglang.failures import classify
from autotuner.engines.sglang.help import parse_help
from autotuner.errors import StopStudy
from autotuner.model.facts import EngineBuild
from autotuner.model.host import Host
from autotuner.model.outcome import Stage
from autotuner.transports.base import Completed, Transport

HELP_TIMEOUT_S = 180.0
"""The page needs SGLang's imports, which take most of a minute on a cold disk."""
DIGEST_TIMEOUT_S = 60.0
_DIGEST_SCRIPT = """
import hashlib, importlib.metadata, importlib.util, json, os, re
spec = importlib.util.find_spec("sglang")
roots = list(spec.submodule_search_locations or []) if spec else []
if not roots:
    raise SystemExit("ModuleNotFoundError: No module named 'sglang'")
root = roots[0]
digest, files, version = hashlib.sha256(), 0, None
for folder, folders, found in os.walk(root):
    folders[:] = sorted(name for name in folders if name != "__pycache__")
    for name in sorted(found):
        if name.endswith(".py"):
            path = os.path.join(folder, name)
            with open(path, "rb") as source:
                data = source.read()
            digest.update(os.path.relpath(path, root).encode() + b"\\0" + hashlib.sha256(data).digest())
            files += 1
            if folder == root and name in ("version.py", "_version.py", "__init__.py") and version is None:
                said = re.search(rb"__version__\\s*=\\s*(?:version\\s*=\\s*)?['\\"]([^'\\"]+)", data)
                version = said.group(1).decode() if said else None
try:
    version = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    pass
print(json.dumps({"version": version or "unknown", "digest": "sha256:" + digest.hexdigest()[:16], "files": files, "root": root}))
"""
"""Hashes the sources by content (about 3000 files, under two seconds), so hand-patched installs are told apart.

The package is found, not imported, and the version is read from the sources where the install has no metadata (``PYTHONPATH``).
"""


def probe_build(transport: Transport, host: Host, help_command: Sequence[str]) -> EngineBuild:
    """Version, digest and accepted flags. Raises ``StopStudy`` when nothing usable is installed."""
    engine = host.engine
    env = {**engine.env, "COLUMNS": "160", "NO_COLOR": "1"}
    found = transport.run([engine.python, "-c", _DIGEST_SCRIPT], timeout_s=DIGEST_TIMEOUT_S, env=env, cwd=engine.cwd)
    if not found.ok:
        raise _unusable(host, found)
    page = transport.run(help_command, timeout_s=HELP_TIMEOUT_S, env=env, cwd=engine.cwd)
    flags = parse_help(page.stdout) if page.ok else {}
    if "--model-path" not in flags:
        raise _unusable(host, page)
    said = json.loads(found.stdout.strip().splitlines()[-1])
    return EngineBuild(engine="sglang", version=said["version"], digest=said["digest"], flags=flags)


def _unusable(host: Host, ended: Completed) -> StopStudy:
    where = f"SGLang cannot be used on {host.name} with {host.engine.python}"
    if ended.returncode == 127:
        return StopStudy(
            f"{where}: the interpreter is not there", hint="set engine.python of the host to the interpreter of SGLang's environment"
        )
    log = f"{ended.stdout}\n{ended.stderr}"
    if "No module named 'sglang'" in log:
        return StopStudy(
            f"{where}: SGLang is not installed in it",
            hint="set engine.python (or engine.env PYTHONPATH) of the host to where SGLang is installed",
        )
    failure = classify(log, exit_code=ended.returncode, stage=Stage.START)
    evidence = failure.evidence[0] if failure.evidence else f"exit code {ended.returncode}"
    return StopStudy(f"{where}: {failure.cause}: {evidence}", hint=failure.remedy or "run its --help by hand there and read the traceback")
