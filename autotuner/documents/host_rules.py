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
from autotuner.model.host import LAST_PORT, bastions, is_port, read_bastion, secret_like
from autotuner.model.near import did_you_mean, near

_HOSTNAME = re.compile(r"[\w:.%][\w:.%~+=-]*")
_USER = re.compile(r"[\w.][\w.@\\$+=-]*")
_SSHD = re.compile(r"sshd?(@.*)?\.(service|socket)")
_OWN_UNIT = re.compile(r"autotuner-(restore-)?[0-9]+-.*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ONE_LINE: frozenset[Path] = frozenset(
    {
        *(("engine", key) for key in ("python", "cwd")),
        *(("model", key) for key in ("path", "drafter", "served_name")),
        *(("transport", key) for key in ("identity_file", "known_hosts", "config_file")),
        *(("service", "production", key) for key in ("cwd", "container")),
        ("endpoint", "address"),
    }
)
"""Names and paths, in which a line break is always a slip."""
_UNITS_HINT = "`systemctl list-units --type=service` lists those of the host"
_SECRET_FLAGS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password", "--hf-token")


def check_host(source: Source) -> None:
    """Report secrets by value, unknown time zones, relative paths, what is no name or text, and settings that contradict each other."""
    _way_in(source)
    _control_characters(source)
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
    at = ("transport", "proxy_jump")
    for hop in bastions(jumps) if isinstance(jumps, str) else ():
        name, bastion, port = read_bastion(hop)
        if not _HOSTNAME.fullmatch(bastion) or (name and not _USER.fullmatch(name)):
            hint = "write [user@]host[:port], several with commas"
            source.error(at, f"'proxy_jump' must name bastions, but one is the text {hop!r}", hint)
        elif port and not is_port(port):
            source.error(at, f"'proxy_jump' has {port!r} where the port of {bastion} belongs", f"write a number from 1 to {LAST_PORT}")


def _control_characters(source: Source) -> None:
    """Report what no program can be given, and line breaks in what is a name or a path."""
    for path, text in source.texts():
        if path[0] == "metadata":
            continue
        forbidden = "\0" if "\0" in text else next(filter(_CONTROL.match, text), None) if path in _ONE_LINE else None
        if forbidden is not None:
            key = f"{path[-2]}[{path[-1]}]" if isinstance(path[-1], int) else path[-1]
            source.error(path, f"'{key}' holds the control character {forbidden!r}", "remove it")


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
    production_name = source.get("service", "production", "unit") or source.get("service", "production", "container")
    called = full_name if manager == "systemd" else str
    seen: set[str] = set()
    for index, conflict in enumerate(source.items("service", "conflicts")):
        if not isinstance(conflict, str):
            continue
        name = called(conflict)
        if isinstance(production_name, str) and name == called(production_name):
            source.error(("service", "conflicts", index), f"'{conflict}' is production itself, which is stopped anyway", "remove it")
        elif name in seen:
            source.error(("service", "conflicts", index), f"'{conflict}' is there twice", "remove one of them")
        seen.add(name)


def _unit_names(source: Source) -> None:
    conflicts: list[Path] = [("service", "conflicts", index) for index in range(len(source.items("service", "conflicts")))]
    for path in [("service", "production", "unit"), *conflicts]:
        value = source.get(*path)
        if not isinstance(value, str):
            continue
        name = full_name(value)
        if not is_unit_name(name):
            source.error(path, f"no unit can have the name {value!r}", _UNITS_HINT)
        elif "@." in name:
            instance = name.replace("@.", "@INSTANCE.")
            source.error(path, f"'{value}' is a template without an instance", f"name the instance that serves: {instance}")
        elif _OWN_UNIT.fullmatch(name):
            hint = "remove it" if path[1] == "conflicts" else "name the unit that serves when nothing is tuned"
            source.error(path, f"'{value}' is a unit of the tuner itself, which comes and goes with every night", hint)
        elif path[1] == "production" and not name.endswith(".service"):
            hint = f"name the service that it leads to, such as {name.rpartition('.')[0]}.service"
            source.error(path, f"'{value}' is no service, and production must be one: what serves is compared and started again", hint)
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
