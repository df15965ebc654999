"""What must hold in a Host beyond the kinds of its values."""

from __future__ import annotations

import re
import zoneinfo

from autotuner.decide.unit import full_name, is_unit_name
from autotuner.documents.source import Path, Source
from autotuner.engines.sglang import reserved
from autotuner.engines.simulated.names import DRAFTERS, MODELS
from autotuner.engines.simulated.profile import profile_names
from autotuner.model.facts import FACT_NAMES
from autotuner.model.host import secret_like
from autotuner.model.near import did_you_mean, near

_HOSTNAME = re.compile(r"[\w:.%][\w:.%~+=-]*")
_USER = re.compile(r"[\w.][\w.@\\$+=-]*")
_SSHD = re.compile(r"sshd?(@.*)?\.(service|socket)")
_SECRET_FLAGS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password", "--hf-token")


def check_host(source: Source) -> None:
    """Report secrets by value, unknown time zones, relative paths, names that are none and settings that contradict each other."""
    _way_in(source)
    _secrets(source)
    _paths(source)
    _window(source)
    _production(source)
    _simulation(source)
    _own_flags(source)
    for name in source.mapping("expect"):
        if name not in FACT_NAMES:
            source.error(("expect", name), f"there is no fact '{name}' to expect", did_you_mean(name, FACT_NAMES), key=True)


def check_env(source: Source, path: Path) -> None:
    """Report variables whose name says that they hold a secret."""
    for name in source.mapping(*path):
        if secret_like(name):
            source.error(
                (*path, name),
                f"'{name}' looks like a secret, and secrets never stand in a document by value",
                f'move it to secrets: {{{name}: "env:{name}"}}',
                key=True,
            )


def _way_in(source: Source) -> None:
    """Report what ssh would take for an option, and what could not be quoted back to a person."""
    host = "write a name, an address, or an alias of ~/.ssh/config"
    user = "write the name of the user on the host, alone"
    for key, form, wanted, hint in (("hostname", _HOSTNAME, "a host", host), ("user", _USER, "a user", user)):
        value = source.get("transport", key)
        if isinstance(value, str) and not form.fullmatch(value):
            source.error(("transport", key), f"'{key}' must be the name of {wanted}, but is the text {value!r}", hint)
    jumps = source.get("transport", "proxy_jump")
    for hop in filter(str.strip, jumps.split(",") if isinstance(jumps, str) else ()):
        name, _, rest = hop.strip().removeprefix("ssh://").rstrip("/").rpartition("@")
        bastion = rest[1:].partition("]")[0] if rest.startswith("[") else rest.partition(":")[0] if rest.count(":") == 1 else rest
        if not _HOSTNAME.fullmatch(bastion) or (name and not _USER.fullmatch(name)):
            hint = "write [user@]host[:port], several with commas"
            source.error(("transport", "proxy_jump"), f"'proxy_jump' must name bastions, but one is the text {hop.strip()!r}", hint)


def _secrets(source: Source) -> None:
    for path in (("engine", "env"), ("service", "production", "env")):
        check_env(source, path)
        for name in source.mapping("secrets"):
            if path[0] == "engine" and name in source.mapping(*path) and not secret_like(name):
                source.error((*path, name), f"'{name}' stands under engine.env and under secrets", "keep the one under secrets", key=True)
    for path in (("engine", "args"), ("service", "production", "argv")):
        for index, word in enumerate(source.items(*path)):
            if isinstance(word, str) and word.split("=", 1)[0] in _SECRET_FLAGS:
                source.warning(
                    (*path, index),
                    f"{word.split('=', 1)[0]} puts a secret into a document and into the process list",
                    "let the engine read it from an environment variable under secrets:",
                )


def _paths(source: Source) -> None:
    simulated = source.get("simulate") is not None
    places: tuple[Path, ...] = (("model", "path"), ("model", "drafter"))
    for path in places:
        value = source.get(*path)
        if isinstance(value, str) and not simulated and not value.startswith("/"):
            source.error(
                path,
                f"'{path[-1]}' must be an absolute folder on the host, but is the text '{value}'",
                "write the folder that holds config.json, such as /models/kimi-k2.6; names of a model hub are not resolved",
            )
    folders: tuple[Path, ...] = (("engine", "cwd"), ("service", "production", "cwd"))
    for path in folders:
        value = source.get(*path)
        if isinstance(value, str) and not value.startswith("/"):
            source.error(path, f"'cwd' must be an absolute folder, but is the text '{value}'", "write it from / on")
    python = source.get("engine", "python")
    if isinstance(python, str) and "/" in python and not python.startswith("/"):
        source.error(
            ("engine", "python"), f"'python' must be a program name or an absolute path, but is the text '{python}'", "write it from / on"
        )


def _own_flags(source: Source) -> None:
    """Report arguments that are written from other keys of the document."""
    if source.get("engine", "name") != "sglang":
        return
    for index, word in enumerate(source.items("engine", "args")):
        key = reserved.host_word(word) if isinstance(word, str) else None
        if key is not None:
            source.error(("engine", "args", index), f"{word} is set by the tuner, from {key}", f"remove it with its value, and write {key}")


def _window(source: Source) -> None:
    window = source.mapping("window")
    if isinstance(window.get("start"), str) and window["start"] == window.get("end"):
        source.error(
            ("window",), f"the window starts and ends at {window.get('start')}, so it is empty", "leave window: out to tune at any time"
        )
    zone = window.get("timezone")
    if isinstance(zone, str) and not _zone_exists(zone):
        known = zoneinfo.available_timezones()
        if not known:
            source.warning(("window", "timezone"), "this machine knows no time zones, so it cannot be checked", "install tzdata")
            return
        by_city = {name.rsplit("/", 1)[-1]: name for name in sorted(known)}
        match = by_city.get(zone.rsplit("/", 1)[-1].replace(" ", "_").title()) or near(zone, sorted(known))
        hint = f"did you mean '{match}'?" if match else "write it like this: Europe/Berlin"
        source.error(("window", "timezone"), f"there is no time zone '{zone}'", hint)


def _zone_exists(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _production(source: Source) -> None:
    manager = source.get("service", "manager")
    production = source.get("service", "production")
    if manager in ("systemd", "container") and production in (None, "auto"):
        key = "unit" if manager == "systemd" else "container"
        source.error(
            ("service", "production") if production else ("service",),
            f"with manager: {manager} the production {key} must be named: it cannot be found by its port",
            f"write production: {{{key}: NAME}}, or production: none when nothing is served",
        )
    if manager == "systemd":
        _unit_names(source)
    unit = source.get("service", "production", "unit") or source.get("service", "production", "container")
    for index, conflict in enumerate(source.items("service", "conflicts")):
        if conflict == unit and unit is not None:
            source.error(("service", "conflicts", index), f"'{conflict}' is production itself, which is stopped anyway", "remove it")


def _unit_names(source: Source) -> None:
    conflicts: list[Path] = [("service", "conflicts", index) for index in range(len(source.items("service", "conflicts")))]
    for path in [("service", "production", "unit"), *conflicts]:
        value = source.get(*path)
        if not isinstance(value, str):
            continue
        name = full_name(value)
        if not is_unit_name(name):
            source.error(path, f"no unit can have the name {value!r}", "`systemctl list-units --type=service` lists those of the host")
        elif "@." in name:
            instance = name.replace("@.", "@INSTANCE.")
            source.error(path, f"'{value}' is a template without an instance", f"name the instance that serves: {instance}")
        elif source.get("transport", "type") == "ssh" and _SSHD.fullmatch(name):
            source.error(path, f"'{value}' is how the tuner reaches the host, and is not stopped", "remove it")


def _simulation(source: Source) -> None:
    if source.get("simulate") is None:
        return
    if source.get("engine", "name") == "vllm":
        source.error(("engine", "name"), "the simulated engine speaks SGLang's language only", "write name: sglang")
    if source.get("transport", "type") == "ssh" and source.get("engine", "python") is None:
        hint = "write python: PATH of an environment with autotuner in it, or transport: {type: local}"
        source.error(("engine",), "the simulated engine runs on the host, and needs an interpreter that knows it there", hint)
    known: dict[Path, tuple[str, tuple[str, ...]]] = {
        ("model", "path"): ("model", MODELS),
        ("model", "drafter"): ("drafter", DRAFTERS),
        ("simulate", "profile"): ("profile", profile_names()),
    }
    for path, (what, options) in known.items():
        value = source.get(*path)
        if isinstance(value, str) and value not in options:
            source.error(path, f"the simulated engine knows no {what} '{value}'", did_you_mean(value, options))
