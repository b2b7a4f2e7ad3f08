"""What a submission may use works in the jail: torch and numpy, a C++ compiler, rooms below private folders."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.helpers import PLAIN_UID, ROOT, RemoteError, RemoteJudge

WAIT_S = 60.0
IMPORTS = """
import sys, json
sys.path.append(sys.argv[1])
import numpy, torch
a = torch.arange(600 * 600, dtype=torch.float64).reshape(600, 600) / 1000
found = {"equal": bool(torch.allclose(a @ a, torch.from_numpy(a.numpy() @ a.numpy()))),
         "threads": torch.get_num_threads(), "foreign": []}
for name in ("pydantic", "kernelassay", "rich", "scipy"):
    try:
        __import__(name)
        found["foreign"].append(name)
    except ImportError:
        pass
print(json.dumps(found))
"""
BUILD = """
set -e
cat > a.cpp <<END
#include <vector>
#include <iostream>
int main() { std::vector<int> v(7, 6); std::cout << v.size() * v[0] << std::endl; }
END
c++ -O2 -march=native -o a a.cpp
./a
c++ -O2 -shared -fPIC -pthread -o b.so a.cpp
ls b.so
"""


@pytest.mark.parametrize(("level", "user"), [("namespaces", "user"), ("landlock", "root")])
def test_torch_and_numpy_and_nothing_of_ours(judges: dict[str, RemoteJudge], level: str, user: str) -> None:
    code = IMPORTS.replace("{", "{{").replace("}", "}}")
    jail = judges.get(user, judges["user"]).start(
        ["{python}", "-I", "-S", "-B", "-c", code, "{site}"], level, runtime=True, env={"OMP_NUM_THREADS": "2"}
    )
    assert jail.wait(WAIT_S) == {"exit_code": 0, "signal": None, "over_limit": None}, jail.log()
    found = json.loads(jail.log().splitlines()[-1])
    jail.close()
    assert found == {"equal": True, "threads": 2, "foreign": []}


def test_threads_without_advice_are_the_cpus_of_the_machine(judge: RemoteJudge) -> None:
    code = "import os; print(len(os.sched_getaffinity(0)), os.cpu_count(), os.sysconf('SC_NPROCESSORS_ONLN'))"
    jail = judge.start(["{python}", "-I", "-S", "-c", code], "namespaces")
    assert jail.wait(WAIT_S)["exit_code"] == 0
    affinity, count, online = map(int, jail.log().split())
    jail.close()
    assert affinity == len(os.sched_getaffinity(0))
    assert count == online == os.cpu_count()


@pytest.mark.parametrize(("level", "user"), [("namespaces", "user"), ("landlock", "root"), ("namespaces", "root")])
def test_compiles_and_runs_cpp(judges: dict[str, RemoteJudge], level: str, user: str) -> None:
    judge = judges.get(user, judges["user"])
    script = BUILD.replace("{", "{{").replace("}", "}}")
    jail = judge.start(["/bin/sh", "-c", script], level, tools=True)
    assert jail.wait(WAIT_S) == {"exit_code": 0, "signal": None, "over_limit": None}, jail.log()
    assert jail.log() == "42\nb.so\n"
    jail.close()


def test_tools_are_absent_unless_asked_for(judge: RemoteJudge) -> None:
    code = "import os; print(os.path.exists('/usr/bin/sh'), os.path.exists('/usr/include'))"
    jail = judge.start(["{python}", "-I", "-S", "-c", code], "namespaces")
    assert jail.wait(WAIT_S)["exit_code"] == 0
    assert jail.log() == "False False\n"
    jail.close()


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A folder that both kinds of judge may use (pytest's own are private)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def test_room_below_a_private_folder_is_readable(judge: RemoteJudge, level: str) -> None:
    room = Path(judge.ask("private_room", 0o755))
    code = "print(open(__import__('sys').argv[1] + '/note.txt').read())"
    jail = judge.start(["{python}", "-I", "-S", "-c", code, "{shown}"], level, rooms={"shown": str(room)})
    assert jail.wait(WAIT_S)["exit_code"] == 0, jail.log()
    assert jail.log() == "read me\n"
    jail.close()
    assert str(room) not in Path("/proc/mounts").read_text()


def test_room_that_the_jail_cannot_read_is_told(judge: RemoteJudge, level: str) -> None:
    room = judge.ask("private_room", 0o700)
    argv = ["{python}", "-I", "-S", "-c", "import os, sys; print(os.listdir(sys.argv[1]))", "{shown}"]
    if judge.user == "root":  # the jail's uid is another
        with pytest.raises(RemoteError, match=r"SandboxError.*chmod o\+rX"):
            judge.start(argv, level, rooms={"shown": room})
        return
    jail = judge.start(argv, level, rooms={"shown": room})
    assert jail.wait(WAIT_S)["exit_code"] == 0
    jail.close()


def test_collecting_takes_plain_files_only(judge: RemoteJudge, level: str, shelf: Path) -> None:
    code = (
        "import os; open('good', 'w').write('x' * 1000); os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe');"
        "os.mkdir('folder'); open('folder/inner', 'w').write('in'); os.symlink('folder', 'way')"
    )
    jail = judge.start(["{python}", "-I", "-S", "-c", code], level)
    assert jail.wait(WAIT_S)["exit_code"] == 0, jail.log()
    jail.collect("good", str(shelf / "good"), 1000)
    jail.collect("folder/inner", str(shelf / "inner"), 10)
    assert (shelf / "good").read_text() == "x" * 1000
    for name, limit in (
        ("good", 999),
        ("link", 10),
        ("pipe", 10),
        ("folder", 10),
        ("way/inner", 10),
        ("../owner.json", 10),
    ):
        with pytest.raises(RemoteError, match="ScratchError"):
            jail.collect(name, str(shelf / "bad"), limit)
    with pytest.raises(RemoteError, match="FileNotFoundError"):
        jail.collect("absent", str(shelf / "bad"), 10)
    jail.close()
    assert not (shelf / "bad").exists()


def test_isolation_is_recorded_as_it_is(judge: RemoteJudge, level: str) -> None:
    found = judge.ask("isolation", level)
    assert found["level"] == level
    assert found["uid_dropped"] is (judge.user == "root")
    assert found["memory"] in ("cgroup", "watchdog")
    jail = judge.start(["{python}", "-I", "-S", "-c", "import time; time.sleep(60)"], level)
    uid = Path(f"/proc/{jail.pid}").stat().st_uid
    groups = Path(f"/proc/{jail.pid}/cgroup").read_text()
    jail.close()
    own = os.geteuid() if not ROOT else PLAIN_UID
    assert (uid != 0 and uid != PLAIN_UID) if judge.user == "root" else uid == own
    assert (found["memory"] == "cgroup") == (jail.scratch.parent.name in groups)


def test_twenty_jails_live_at_once_under_twenty_uids(judges: dict[str, RemoteJudge]) -> None:
    judge = next(iter(judges.values()))
    jails, seconds = [], []
    for _ in range(20):
        start = time.monotonic()
        jails.append(judge.attack("hang", "namespaces"))
        seconds.append(time.monotonic() - start)
    uids = {Path(f"/proc/{jail.pid}").stat().st_uid for jail in jails}
    for jail in jails:
        jail.close()
    print(f"start-up: median {statistics.median(seconds) * 1e3:.0f} ms, best {min(seconds) * 1e3:.0f} ms")
    assert len(uids) == (20 if judge.user == "root" else 1)
    assert statistics.median(seconds) < 2.0
