"""Build: the judge compiles native sources itself, in a jail of its own, and keeps the log.

So the object that runs is the object that was built from the sources that were hashed, and a compiler that reads
or writes files for the submission finds nothing but its sources.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernelassay.judge._intake import NATIVE_SUFFIXES
from kernelassay.records import Build, Limits, Manifest, Status
from kernelassay.sandbox import Jail, Sandbox, SandboxError
from kernelassay.session import Trouble

STANDARD = {"c++": "-std=c++20", "cc": "-std=c17"}
"""Language standard per compiler driver; a manifest's own `-std=` comes later and wins."""
FIXED_FLAGS = ("-shared", "-fPIC", "-pthread")
MAX_LIBRARY_BYTES = 64 << 20
TOOL_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where compilers are looked for, here and in the jail, whatever the caller's PATH."""
_CANARY = 'extern "C" int canary(void) { return 0; }\n'


@dataclass(frozen=True)
class Built:
    """What a build gave."""

    library: Path | None
    sha256: str | None
    log: str
    trouble: Trouble | None
    kept: bool = False
    """Built for an earlier grade of the same sources."""


def build(sandbox: Sandbox, sources: Path, manifest: Manifest, into: Path, limits: Limits) -> Built:
    """Compile `manifest.build` from the folder `sources` and put the library into the folder `into`.

    Raises:
        SandboxError: there is no compiler, the jail failed, or the compiler cannot compile the judge's own canary.
    """
    plan = manifest.build
    if plan is None:
        return Built(None, None, "", None)
    target = into / plan.library
    trouble, log = _compile(sandbox, sources, plan, target, limits)
    if trouble is not None and trouble.status is Status.BUILD_FAILED:
        _canary(sandbox, limits)
    if trouble is not None:
        return Built(None, None, log, trouble)
    target.chmod(0o555)
    return Built(target, hashlib.sha256(target.read_bytes()).hexdigest(), log, None)


def _compile(sandbox: Sandbox, sources: Path, plan: Build, target: Path, limits: Limits) -> tuple[Trouble | None, str]:
    driver = NATIVE_SUFFIXES[Path(plan.sources[0]).suffix]
    compiler = shutil.which(driver, path=TOOL_PATH)
    if compiler is None:
        raise SandboxError(f"no compiler {driver!r} on this machine\nnext: apt-get install g++, then assay doctor")
    argv = (
        compiler,
        STANDARD[driver],
        *plan.flags,
        *FIXED_FLAGS,
        "-o",
        "{scratch}/built.so",
        *("{submission}/" + source.replace("{", "{{").replace("}", "}}") for source in plan.sources),
    )
    env = {"PATH": TOOL_PATH, "TMPDIR": "{scratch}", "HOME": "{scratch}", "LANG": "C.UTF-8"}
    jail = Jail(argv=argv, rooms={"submission": sources}, env=env, limits=limits, runtime=False)
    with sandbox.start(jail) as process:
        ending = process.wait(limits.build_s)
        log = process.log().decode(errors="replace")
        if ending is None:
            process.kill()
            return Trouble(Status.TIMEOUT, "build.time", f"the build took more than {limits.build_s:g} s"), log
        if ending.over_limit:
            return Trouble(
                Status.OVER_LIMIT, f"limit.{ending.over_limit}", f"the build went over the limit of {ending.over_limit}"
            ), log
        if ending.exit_code is None:
            raise SandboxError(f"{driver} was killed from outside (signal {ending.signal})\nnext: assay grade it again")
        if ending.exit_code != 0:
            first = next(
                (line for line in log.splitlines() if "error" in line),
                log.strip().splitlines()[-1] if log.strip() else "",
            )
            return Trouble(
                Status.BUILD_FAILED,
                "build.compile",
                f"{driver} failed: {first.strip()[:300]}",
                expected="the sources compile",
                actual=f"exit code {ending.exit_code}",
                detail=log[-4000:],
            ), log
        try:
            process.collect("built.so", target, MAX_LIBRARY_BYTES)
        except OSError as error:
            return Trouble(Status.BUILD_FAILED, "build.library", f"the build left no usable library: {error}"), log
    return None, log


def _canary(sandbox: Sandbox, limits: Limits) -> None:
    """A broken tool chain is the machine's fault: compile one line of our own before blaming the submission."""
    with tempfile.TemporaryDirectory(prefix="kernelassay-canary-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "canary.cpp").write_text(_CANARY)
        trouble, log = _compile(sandbox, folder, Build(sources=("canary.cpp",)), folder / "canary.so", limits)
        if trouble is not None:
            raise SandboxError(
                f"the compiler cannot compile the judge's own canary: {trouble.title}\n{log[-500:]}\nnext: assay doctor"
            )
