from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotuner.errors import AutotunerError, TransportError
from autotuner.transports.local import LocalTransport

LOCAL = LocalTransport()


def test_run_passes_input_environment_folder_and_hostile_arguments(tmp_path: Path) -> None:
    hostile = "x'; touch /tmp/no; $(id) `id` \n \\ \""
    code = "import os,sys; print(sys.stdin.read(), os.environ['A'], os.getcwd(), sys.argv[1], end='')"
    done = LOCAL.run([sys.executable, "-c", code, hostile], timeout_s=20, stdin=b"in", env={"A": "b"}, cwd=str(tmp_path))
    assert done.stdout == f"in b {tmp_path} {hostile}"
    assert done.ok


def test_missing_program_is_127_and_missing_folder_is_named() -> None:
    assert LOCAL.run(["no-such-program"], timeout_s=5).returncode == 127
    done = LOCAL.run(["true"], timeout_s=5, cwd="/no/such/folder")
    assert (done.returncode, done.stderr) == (126, "/no/such/folder: no such folder")


def test_timeout_kills_the_whole_group(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(TransportError, match="did not end within"):
        LOCAL.run(["sh", "-c", f"sleep 300 & echo $! > {pid_file}; wait"], timeout_s=1)
    pid = int(pid_file.read_text())
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0]:
        time.sleep(0.02)


def test_a_command_does_not_hear_the_terminal() -> None:
    done = LOCAL.run([sys.executable, "-c", "import os; print(os.getsid(0))"], timeout_s=20)
    assert int(done.stdout) != os.getsid(0)


def test_write_is_atomic_makes_folders_and_sets_the_mode(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c.json"
    LOCAL.write(str(target), b"one", mode=0o600)
    LOCAL.write(str(target), b"two", mode=0o600)
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in target.parent.iterdir()] == ["c.json"]


def test_read_ranges_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    assert LOCAL.read(str(tmp_path / "f"), offset=2, limit=3) == b"234"
    assert LOCAL.read(str(tmp_path / "f"), offset=20) == b""
    assert LOCAL.read("/proc/self/stat").startswith(str(os.getpid()).encode())
    with pytest.raises(FileNotFoundError):
        LOCAL.read(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        LOCAL.read("/proc/999999999/stat")


def test_remove_and_exists(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    assert LOCAL.exists(str(path))
    LOCAL.remove(str(path))
    LOCAL.remove(str(path))
    assert not LOCAL.exists(str(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.host
@pytest.mark.parametrize(("options", "hint"), [("size=64k", "the disk is full"), ("ro", "mounted read-only")])
def test_full_and_read_only_disks_have_a_hint(tmp_path: Path, options: str, hint: str) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)], check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(AutotunerError, match="cannot write") as caught:
            LOCAL.write(str(tmp_path / "big"), b"x" * 1_000_000)
        assert hint in (caught.value.hint or "")
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_stream_says_when_there_is_something_and_when_it_ended() -> None:
    stream = LOCAL.stream(["cat"])
    assert stream.read() is None
    stream.write(b"hello")
    assert select.select([stream], [], [], 20)[0]
    assert stream.read() == b"hello"
    stream.close()
    stream.close()
    ended = LOCAL.stream(["true"])
    assert select.select([ended], [], [], 20)[0]
    assert ended.read() == b""
    with pytest.raises(TransportError, match="true ended"):
        ended.write(b"x" * 1_000_000)
    ended.close()
    with pytest.raises(TransportError, match="no-such-program cannot be started"):
        LOCAL.stream(["no-such-program"])


def test_a_file_is_given_to_its_owner(tmp_path: Path) -> None:
    target = tmp_path / "f"
    LOCAL.write(str(target), b"", owner=f"{target.parent.owner()}:{target.parent.group()}")
    assert target.owner() == target.parent.owner()
    with pytest.raises(AutotunerError, match="no-such-user"):
        LOCAL.write(str(target), b"", owner="no-such-user")
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_another_one_is_as_good() -> None:
    assert LOCAL.fresh().run(["true"], timeout_s=20).ok
    assert (LOCAL.interruptions, LOCAL.rtt_s) == (0, None)
