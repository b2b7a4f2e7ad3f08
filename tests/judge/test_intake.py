"""Whatever a folder holds: taken in, or refused in one line that a person can act on; nothing else is touched."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelassay.judge import GradeRequest, UsageError, exit_code, grade
from kernelassay.judge._intake import MAX_DEPTH, MAX_FILES, TakenIn, take_in
from kernelassay.records import ExitCode, Status, Verdict

SOURCE = "def custom_kernel(data):\n    return data\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A submission that intake takes."""
    made = tmp_path / "submission"
    made.mkdir()
    (made / "solution.py").write_text(SOURCE)
    return made


def taken(folder: Path) -> TakenIn:
    return take_in(folder, folder.parent / f"copy-{time.monotonic_ns()}")


def reason(folder: Path) -> str:
    refused = taken(folder).refused
    assert refused is not None
    assert refused.isprintable(), "one line, and nothing that a terminal obeys"
    assert len(refused) < 600
    return refused


def test_takes_a_folder_as_it_is(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "helper.py").write_text("x = 1\n")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "solution.pyc").write_bytes(b"\0\1\2")
    result = taken(folder)
    assert result.refused is None
    assert [f.path for f in result.submission.files] == ["solution.py", "sub/helper.py"]
    assert (result.folder / "sub" / "helper.py").read_text() == "x = 1\n"
    assert result.submission.files[0].sha256 == hashlib.sha256(SOURCE.encode()).hexdigest()


def test_the_hash_follows_content_and_names_only(folder: Path, tmp_path: Path) -> None:
    first = taken(folder).submission.content_hash
    os.utime(folder / "solution.py", (1, 1))
    folder = folder.rename(tmp_path / "renamed")
    assert taken(folder).submission.content_hash == first
    (folder / "a").write_text("")
    assert taken(folder).submission.content_hash != first


def test_takes_one_file(tmp_path: Path) -> None:
    (tmp_path / "kernel 1.py").write_text(SOURCE)
    result = taken(tmp_path / "kernel 1.py")
    assert (result.refused, result.submission.name) == (None, "kernel 1.py")
    assert (result.folder / "solution.py").read_text() == SOURCE


@pytest.mark.parametrize(
    "name", ["with spaces", "new\nline", "\x1b[31mred", "'\"quotes$(id)`", "-rf", "ünï", "a" * 255]
)
def test_the_folders_name_is_only_a_name(folder: Path, name: str) -> None:
    folder = folder.rename(folder.parent / name)
    assert (taken(folder).refused, taken(folder).submission.name) == (None, name)


def test_a_folders_name_that_is_not_utf8(folder: Path) -> None:
    renamed = Path(os.fsdecode(os.fsencode(folder.parent) + b"/\xff\xfe"))
    folder.rename(renamed)
    assert taken(renamed).submission.name == "��"


def test_links_on_the_way_are_the_callers_business(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file.py").symlink_to(folder / "solution.py")
    assert taken(tmp_path / "link").refused is None
    assert taken(tmp_path / "file.py").refused is None


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_the_copy_is_readable_whatever_the_umask(folder: Path, umask: int) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "x.py").write_text("")
    before = os.umask(umask) if os.geteuid() == 0 else os.umask(umask & 0o077)
    try:
        result = taken(folder)
    finally:
        os.umask(before)
    modes = {p.relative_to(result.folder).as_posix(): p.stat().st_mode & 0o777 for p in result.folder.rglob("*")}
    assert result.folder.stat().st_mode & 0o777 == 0o755
    assert modes == {"solution.py": 0o444, "sub": 0o755, "sub/x.py": 0o444}


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("/etc/passwd", "solution.py"),
        ("/etc", "sub"),
        ("/nowhere", "dangling.py"),
        ("loop.py", "loop.py"),
        ("solution.py", "inside.py"),
        ("..", "up"),
    ],
)
def test_links_are_refused(folder: Path, target: str, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    assert "is a symbolic link" in reason(folder)


def test_special_files_are_refused(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    assert reason(folder) == "'fifo' is no regular file"
    (folder / "fifo").unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder / "socket"))
        assert reason(folder).startswith("'socket' cannot be read")
    (folder / "socket").unlink()
    if os.geteuid() == 0:
        os.mknod(folder / "zero", 0o020666, os.makedev(1, 5))
        assert "zero" in reason(folder)


def test_what_nobody_can_read_is_refused(folder: Path) -> None:
    (folder / "blob.py").write_bytes(os.urandom(4096))
    assert "binaries are refused" in reason(folder)
    (folder / "blob.py").write_bytes(b"x = 1\0")
    assert "NUL bytes" in reason(folder)


def test_a_gigabyte_is_refused_at_once(folder: Path) -> None:
    with (folder / "big.py").open("wb") as file:
        file.truncate(1 << 30)
    start = time.monotonic()
    assert reason(folder) == "'big.py' has 1073741824 bytes; a file may have 4 MiB"
    assert time.monotonic() - start < 5


def test_many_files_are_refused(folder: Path) -> None:
    for number in range(MAX_FILES + 1):
        (folder / f"{number}.py").touch()
    assert reason(folder) == f"more than {MAX_FILES} files and folders"


def test_many_folders_are_refused(folder: Path) -> None:
    for number in range(MAX_FILES + 1):
        (folder / f"{number}").mkdir()
    assert reason(folder) == f"more than {MAX_FILES} files and folders"


def test_many_bytes_are_refused(folder: Path) -> None:
    for number in range(5):
        (folder / f"{number}.py").write_bytes(b" " * (4 << 20))
    assert reason(folder) == "more than 16 MiB in all"


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1200])
def test_deep_folders_are_refused(folder: Path, depth: int) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert reason(folder) == f"folders more than {MAX_DEPTH} deep"
    subprocess.run(["rm", "-rf", str(folder)], check=True)  # shutil would recurse too deeply


@pytest.mark.parametrize("name", [b"new\nline.py", b"\x1b[2J.py", b"\xff.py", b"\x7f.py"])
def test_file_names_with_control_characters_are_refused(folder: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).touch()
    assert "control characters or bytes that are not UTF-8" in reason(folder)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert reason(tmp_path / "empty").startswith("no 'solution.py'")


def test_unreadable_parts_are_refused(folder: Path) -> None:
    """As another user, because root reads everything."""
    if os.geteuid() != 0:
        (folder / "secret.py").touch(mode=0)
        assert "cannot be read" in reason(folder)
        return
    (folder / "hidden").mkdir(mode=0)
    code = (
        "import os, sys, tempfile\nfrom pathlib import Path\nfrom kernelassay.judge._intake import take_in\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "with tempfile.TemporaryDirectory(dir='/var/tmp') as name:\n"
        "    print(take_in(Path(sys.argv[1]), Path(name) / 'copy').refused)"
    )
    parent = folder.parent
    for above in (parent, *parent.parents):
        if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    told = [
        subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True).stdout
    ]
    (folder / "hidden").rmdir()
    (folder / "secret.py").touch(mode=0)
    told += [
        subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True).stdout
    ]
    assert told == [
        "folder 'hidden' cannot be read: Permission denied\n",
        "'secret.py' cannot be read: Permission denied\n",
    ]


MANIFESTS = {
    "not YAML": ("entry: [", "is not YAML"),
    "two documents": ("a: 1\n---\nb: 2\n", "is not YAML"),
    "tags": ("!!python/object/apply:os.system [id]", "is not YAML"),
    "a key twice": ("file: a.py\nfile: b.py\n", "is not YAML"),
    "escape codes": ('description: "\x1b[31m"', "is not YAML"),
    "a list": ("- 1\n", "submission.yaml: the document"),
    "nothing": ("", "submission.yaml: the document"),
    "an unknown key": ("entrypoint: run\n", "submission.yaml: entrypoint: Extra inputs are not permitted"),
    "a key that clears the screen": ('"\\e[2J\\nclean": 1\n', "\\x1b[2J\\nclean"),
    "an unknown entry": ("entry: magic\n", "submission.yaml: entry"),
    "a number": ("file: 7\n", "submission.yaml: file"),
    "a date": ("description: 2024-01-01\n", "submission.yaml"),
    "infinity": ("description: .inf\n", "submission.yaml"),
    "an alias": ("file: &a solution.py\ndescription: *a\n", "alias"),
    "itself": ("a: &a [*a]\n", "alias"),
    "a surrogate": ('description: "\\ud800"\n', "submission.yaml"),
    "a long number": ("description: " + "9" * 6000 + "\n", "submission.yaml"),
    "deep": ("[" * 20000, "submission.yaml"),
    "long": ("# " + "x" * (65 << 10), "64 KiB"),
    "another file": ("file: kernel.py\n", "no 'kernel.py'"),
    "a file outside": ("file: ../../etc/passwd\n", "no '../../etc/passwd'"),
    "c_abi without build": ("entry: c_abi\nsymbol: f\n", "needs `symbol` and `build`"),
    "c_abi with a strange symbol": ("entry: c_abi\nsymbol: f;g\nbuild: {sources: [a.cpp]}\n", "no C identifier"),
    "a source that is not there": ("build: {sources: [a.cpp]}\n", "names 'a.cpp', which is not in the submission"),
    "no source": ("build: {sources: []}\n", "submission.yaml: build.sources"),
    "a source in Fortran": ("build: {sources: [a.f]}\n", "are all C++"),
    "a plugin": ("build: {sources: [k.cpp], flags: [-fplugin=x]}\n", "'-fplugin=x' is not allowed"),
    "a linker flag": ("build: {sources: [k.cpp], flags: ['-Wl,-init,f']}\n", "is not allowed"),
    "a path in a flag": ("build: {sources: [k.cpp], flags: [-I/etc]}\n", "is not allowed"),
    "an output flag": ("build: {sources: [k.cpp], flags: [-o, /tmp/x]}\n", "is not allowed"),
    "a response file": ("build: {sources: [k.cpp], flags: ['@/etc/passwd']}\n", "is not allowed"),
    "a library elsewhere": ("build: {sources: [k.cpp], library: ../x.so}\n", "must be a new file name"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_that_are_refused(folder: Path, name: str) -> None:
    text, told = MANIFESTS[name]
    (folder / "k.cpp").touch()
    (folder / "submission.yaml").write_text(text)
    assert told in reason(folder)


@pytest.mark.parametrize("flag", ["-Wall", "-Wextra", "-Wpedantic", "-Wlogical-op", "-Wno-unused", "-fopenmp", "-lm"])
def test_flags_that_honest_kernels_ask_for(folder: Path, flag: str) -> None:
    """Warnings begin like the prefixes of the linker, the preprocessor and the assembler."""
    (folder / "k.cpp").touch()
    (folder / "submission.yaml").write_text(f"build: {{sources: [k.cpp], flags: [{flag}]}}\n")
    assert taken(folder).refused is None


def test_a_manifest_cannot_blow_up(folder: Path) -> None:
    """Nine levels of nine aliases are a billion strings once written out."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    (folder / "submission.yaml").write_text("\n".join(levels))
    start = time.monotonic()
    assert "alias" in reason(folder)
    assert time.monotonic() - start < 5


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet="abefilnort:-[]{}*&!|>#%@`'\",\n \t?0.\\x", max_size=60))
def test_no_manifest_breaks_the_judge(folder: Path, text: str) -> None:
    (folder / "submission.yaml").write_text(text)
    refused = taken(folder).refused
    assert refused is None or refused.isprintable()


@pytest.mark.parametrize("path", ["nowhere", "a" * 300, "nul\0nul", "loop", "fifo", "/dev/zero"])
def test_the_callers_mistakes(tmp_path: Path, path: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="next: assay grade"):
        take_in(tmp_path / path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_grades_inside_the_submission(folder: Path) -> None:
    with pytest.raises(UsageError, match="--home"):
        take_in(folder, folder / "home" / "grades" / "x")
    assert sorted(p.name for p in folder.iterdir()) == ["solution.py"]


def test_a_file_that_grows_or_goes_while_it_is_read(folder: Path) -> None:
    """A submission in motion is taken or refused; it never breaks intake, and what was hashed is what was kept."""
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for number in range(20):
                (folder / f"x{number}.py").write_text("y" * number)
            (folder / "d").mkdir(exist_ok=True)
            (folder / "d").rmdir()
            for number in range(20):
                (folder / f"x{number}.py").unlink()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(30):
            result = taken(folder)
            assert result.refused is None or "cannot be read" in result.refused
            for file in result.submission.files:
                assert hashlib.sha256((result.folder / file.path).read_bytes()).hexdigest() == file.sha256
    finally:
        stop.set()
        thread.join()


def test_a_refusal_is_a_grade(folder: Path, tmp_path: Path) -> None:
    (folder / "solution.py").unlink()
    graded = grade(GradeRequest(folder, "ops/topk", home=tmp_path / "home"))
    record = graded.grade
    assert (record.status, record.verdict) == (Status.REFUSED, Verdict.INCORRECT)
    assert exit_code(record) is ExitCode.INCORRECT
    assert record.isolation is None
    assert record.reasons[0].startswith("refused: no 'solution.py'")
    assert graded.folder.is_dir()
    assert [p.name for p in (tmp_path / "home" / "grades").iterdir()] == [record.id]
