"""What an administrator installs so that a user without root may tune a host whose server is a systemd unit."""

from __future__ import annotations

import base64
import re
import textwrap
import zlib
from collections.abc import Sequence

from autotuner.errors import UsageError

PROGRAM = "/usr/local/lib/autotuner/host"
"""Root's; it refuses to touch units that are not listed for whoever calls it."""

COMPILE = """\
import importlib.util, marshal, os, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as packed:
    sources = {name: packed.read(name) for name in packed.namelist()}
descriptor = os.open(sys.argv[2] + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
with os.fdopen(descriptor, "wb") as file:
    file.write("".join(sys.argv[3:]).encode())
    with zipfile.ZipFile(file, "w") as made:
        for name, text in sources.items():
            made.writestr(zipfile.ZipInfo(name), text)
            code = marshal.dumps(compile(text, name, "exec", dont_inherit=True))
            made.writestr(zipfile.ZipInfo(name + "c"), importlib.util.MAGIC_NUMBER + bytes([1, 0, 0, 0]) + bytes(8) + code)
    file.flush()
    os.fsync(file.fileno())
os.replace(sys.argv[2] + ".part", sys.argv[2])
"""
"""Adds what the host's own Python compiles to a packed program: IN OUT. It halves the time that every command takes."""

_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]{1,200}")
_SCRIPT = r"""#!/bin/sh
# Lets {user} have these units stopped and started by autotuner, and nothing else: {units}
# Installs {program}, /etc/sudoers.d/autotuner-{user} and /etc/autotuner/allow.json. Run it as root.
# To take it back: rm /etc/sudoers.d/autotuner-{user}
set -eu
[ "$(id -u)" = 0 ] || {{ echo "run this as root" >&2; exit 1; }}
umask 022
/usr/bin/python3 - {user} {units} <<'END'
import base64, json, os, pathlib, subprocess, sys, zlib

def put(path, data, mode):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name("." + path.name + ".new")
    new.write_bytes(data)
    new.chmod(mode)
    os.chown(str(new), 0, 0)
    new.replace(path)

PROGRAM = '''
{packed}
'''
user, units = sys.argv[1], sys.argv[2:]
allow = pathlib.Path("/etc/autotuner/allow.json")
listed = json.loads(allow.read_text()) if allow.exists() else {{"users": {{}}}}
listed["users"][user] = {{"units": units}}
COMPILE = '''
{compile}'''
packed, program = "{program}.new", "{program}"
put(packed, zlib.decompress(base64.b64decode(PROGRAM)), 0o600)
subprocess.run([sys.executable, "-c", COMPILE, packed, program, "#!/usr/bin/python3 -Es\n"], check=True)
os.unlink(packed)
os.chmod(program, 0o755)
put(allow, json.dumps(listed, indent=2).encode() + b"\n", 0o644)
put("/etc/sudoers.d/autotuner-" + user, (user + " ALL=(root) NOPASSWD: {program}\n").encode(), 0o440)
END
visudo -cqf /etc/sudoers.d/autotuner-{user} || {{ rm -f /etc/sudoers.d/autotuner-{user}; echo "sudoers refused" >&2; exit 1; }}
echo "granted to {user}: {units}"
"""


def script(user: str, units: Sequence[str], packed: bytes) -> str:
    """A shell script that installs all of it. Raises ``UsageError`` for names that could be more than names."""
    for kind, form, names in (("user", _USER, (user,)), ("unit", _UNIT, tuple(units))):
        for name in names:
            if not form.fullmatch(name):
                raise UsageError(f"{name!r} is not the name of a {kind}", hint=f"write the {kind}'s plain name")
    if not units:
        raise UsageError("no unit is named that could be granted", hint="write `service: {production: {unit: NAME}}` in the host document")
    text = "\n".join(textwrap.wrap(base64.b64encode(zlib.compress(packed, 9)).decode(), 120))
    quoted = " ".join(f"'{unit}'" for unit in units)
    return _SCRIPT.format(user=user, units=quoted, program=PROGRAM, packed=text, compile=COMPILE)
