"""A confined process: Linux namespaces around untrusted code.

`spawn` runs a function as process 1 of new user, mount, pid, network, ipc and uts namespaces. It sees a read-only
root made only of the folders it was given, one small writable scratch folder (memory, gone afterwards), no network, no
other process, no capability, fewer system calls (see `syscalls`) and an empty environment; when it ends, the kernel
kills whatever it left running.

Works as root and as an ordinary user, where the kernel (5.14 or newer) allows user namespaces. As root the process
becomes host user 65534 (if everything it is shown is readable by all), because limits on processes do not bind root.
Landlock is not used: it leaves chmod, utime and UDP open. `unavailable` says what is missing by trying it; callers
then do not run untrusted code, unless told otherwise.
"""

import contextlib
import errno
import functools
import json
import os
import select
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from offleash.eval.verify.sandbox.limits import (
    PR_SET_NO_NEW_PRIVS,
    Limits,
    call,
    die_with_parent,
    kill_and_reap,
    libc,
    prctl,
    set_limits,
)
from offleash.eval.verify.sandbox.memory_group import enter
from offleash.eval.verify.sandbox.syscalls import refuse_syscalls

SCRATCH = "/scratch"
"""Where the writable folder appears inside; /tmp leads there as well, if nothing else is shown in it."""
CLONE_FLAGS = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # user mnt pid net ipc uts
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
MOUNT_SETATTR, AT_RECURSIVE = 442, 0x8000
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
PR_SET_DUMPABLE, PR_CAPBSET_DROP = 4, 24
CAPABILITY_VERSION_3 = 0x20080522
NOBODY = 65534
MOUNT_POINTS = ("/mnt", "/media", "/srv", "/tmp", "/run", "/var/tmp", "/opt")  # one is covered while the root is built
PROBE = f"import sys, json; sys.path[:] = json.loads(sys.argv[1]);from {__name__} import probe; probe()"
DEVICES = ("null", "zero", "full", "random", "urandom")


class SandboxError(OSError):
    """The sandbox could not be built; nothing was run."""


def spawn(
    main: Callable[[], None],
    *,
    readable: Iterable[str],
    limits: Limits,
    keep: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    group: Path | None = None,
) -> int:
    """Run `main` confined and return the pid of the process that waits for it and ends with its exit code.

    Only the file descriptors in `keep` stay open inside, and only `environment` is there. Everything inside is part of
    the control group `group` (see `memory_group`). The caller must have one
    thread, and kills the sandbox by killing the returned pid (or by dying). Raises SandboxError if anything could not
    be set up.
    """
    libc()
    paths = minimal(readable)
    inside = _Inside(main, limits, tuple(keep), dict(environment or {}), group)
    report_r, report_w = os.pipe()
    mapped_r, mapped_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(report_r)
        os.close(mapped_w)
        _outer(inside, paths, mapped_r, report_w)
    os.close(report_w)
    os.close(mapped_r)
    try:
        _hand_over_ids(pid, report_r, mapped_w, as_nobody=all(world_readable(path) for path in paths))
    except OSError as error:
        kill_and_reap(pid)
        raise error if isinstance(error, SandboxError) else SandboxError(f"user namespace: {error}") from error
    finally:
        os.close(report_r)
        os.close(mapped_w)
    return pid


def world_readable(path: str) -> bool:
    mode = Path(path).stat().st_mode
    return bool(mode & stat.S_IROTH) and (not stat.S_ISDIR(mode) or bool(mode & stat.S_IXOTH))


def _hand_over_ids(pid: int, report_r: int, mapped_w: int, as_nobody: bool) -> None:
    """The parent's half: give the child its user ids once it is in its namespace, then wait until it runs or fails."""
    if os.read(report_r, 1) != b"u":
        raise SandboxError("user namespaces are not permitted here")
    os.write(mapped_w, b"2" if _write_maps(pid, as_nobody) else b"1")
    if message := b"".join(iter(lambda: os.read(report_r, 4096), b"")):
        raise SandboxError(message.decode(errors="replace"))


def _write_maps(pid: int, as_nobody: bool) -> bool:
    """Map user 0 inside to us; as root also 1 inside to nobody. Says whether the second exists."""
    base = Path(f"/proc/{pid}")
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and as_nobody:
        with contextlib.suppress(PermissionError):
            (base / "gid_map").write_text(f"0 {gid} 1\n1 {NOBODY} 1\n")
            (base / "uid_map").write_text(f"0 {uid} 1\n1 {NOBODY} 1\n")
            return True
    (base / "setgroups").write_text("deny")
    (base / "gid_map").write_text(f"0 {gid} 1\n")
    (base / "uid_map").write_text(f"0 {uid} 1\n")
    return False


@dataclass(frozen=True, slots=True)
class _Inside:
    """What process 1 is to run, and with what."""

    main: Callable[[], None]
    limits: Limits
    keep: tuple[int, ...]
    environment: dict[str, str]
    group: Path | None


def _outer(inside: _Inside, paths: list[str], mapped_r: int, report_w: int) -> NoReturn:
    """The child: enter the namespaces, build the root, fork process 1, wait for it, end as it did."""
    code = 70
    try:
        parent = os.getppid()
        os.setsid()
        if inside.group is not None:
            enter(inside.group)
        call("unshare", CLONE_FLAGS)
        os.write(report_w, b"u")
        two_users = os.read(mapped_r, 1) == b"2"
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        die_with_parent()  # only now: a change of user makes the kernel forget it
        if os.getppid() != parent:
            os._exit(code)
        _close_doors()
        _build_root(paths, inside.limits)
        alive_r, alive_w = os.pipe()
        inner = os.fork()
        if inner == 0:
            os.close(alive_w)
            _inner(inside, two_users, alive_r, report_w)
        os.close(report_w)
        _keep_open((alive_w,))
        code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
        code = code if code >= 0 else 128 - code
    except BaseException as error:  # nothing may return into the caller's stack in this forked child
        _tell(report_w, error)
    os._exit(code)


def _inner(inside: _Inside, two_users: bool, alive_r: int, report_w: int) -> NoReturn:
    """Process 1: give up every privilege, then run `main`."""
    code = 70
    try:
        _keep_open((*inside.keep, alive_r, report_w))
        if two_users:
            os.setgroups([])
            os.setresgid(1, 1, 1)
            os.setresuid(1, 1, 1)
        _drop_capabilities()
        die_with_parent()
        if select.select([alive_r], [], [], 0)[0]:  # the waiting process died before the line above
            os._exit(70)
        prctl(PR_SET_DUMPABLE, 0)  # the code under test shares our user: it must not read or trace process 1
        os.environ.clear()
        os.environ.update({"HOME": SCRATCH, "TMPDIR": SCRATCH} | inside.environment)
        set_limits(inside.limits)
        refuse_syscalls()
        os.chdir(SCRATCH)
        os.close(report_w)
        report_w = -1
        inside.main()
        code = 0
    except BaseException as error:  # as above: a forked child must end here
        _tell(report_w, error)
    os._exit(code)


def _tell(report_w: int, error: BaseException) -> None:
    with contextlib.suppress(OSError):
        os.write(report_w, f"{type(error).__name__}: {error}".encode()[:4000])


def _close_doors() -> None:
    """Best effort: no namespaces inside the namespace, no System V shared memory (it outlives address-space limits)."""
    for name in ("user/max_user_namespaces", "kernel/shmall", "kernel/shmmni"):
        with contextlib.suppress(OSError):
            Path("/proc/sys", name).write_text("0")


def _build_root(paths: list[str], limits: Limits) -> None:
    """Move into a new root in memory that holds read-only binds of `paths`, a few devices and the scratch folder."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    free = (f for f in MOUNT_POINTS if Path(f).is_dir() and not any(related(f, path) for path in paths))
    if (root := next(free, None)) is None:
        raise OSError(errno.ENOENT, f"none of {', '.join(MOUNT_POINTS)} is free to build the root on")
    sources = {path: os.open(path, os.O_PATH) for path in [*paths, *(f"/dev/{name}" for name in DEVICES)]}
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    Path(root + SCRATCH).mkdir()
    options = f"size={limits.scratch_bytes},nr_inodes=4096,mode=1777"
    mount("tmpfs", root + SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for path, fd in sources.items():
        _bind(fd, path, root)
    if not any(related("/tmp", path) for path in paths):
        Path(f"{root}/tmp").symlink_to(SCRATCH)
    os.chdir(root)
    call("pivot_root", ".", ".")
    call("umount2", ".", MNT_DETACH)
    mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir("/")
    call("sethostname", "sandbox", 7)


def related(one: str, other: str) -> bool:
    """Whether one path is the other, or lies inside it."""
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


def _bind(fd: int, path: str, root: str) -> None:
    """Show the file or folder behind `fd` at `path` under the new root, read-only all the way down."""
    target = Path(root + path)
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    mount(f"/proc/self/fd/{fd}", str(target), None, MS_BIND | MS_REC)
    nodev = 0 if stat.S_ISCHR(mode) else ATTR_NODEV
    attributes = struct.pack("=QQQQ", ATTR_RDONLY | ATTR_NOSUID | nodev, 0, 0, 0)
    call("syscall", MOUNT_SETATTR, -100, str(target), AT_RECURSIVE, attributes, len(attributes))


def minimal(paths: Iterable[str]) -> list[str]:
    """The paths that exist, absolute, none inside another; a link is shown as what it leads to, in the link's place."""
    kept: list[str] = []
    for path in sorted({str(Path(p).absolute()) for p in paths if Path(p).exists()}):
        if path == "/":
            raise ValueError("the whole file system cannot be shown to a sandbox")
        if not any(path == k or path.startswith(k + "/") for k in kept):
            kept.append(path)
    return kept


def interpreter_paths() -> list[str]:
    """What a bare Python needs to be readable: its own installation and the system's shared libraries."""
    system = ["/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"]
    return [*system, str(Path(sys.base_prefix).resolve()), str(Path(sys.executable).resolve().parent)]


def _drop_capabilities() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:  # past the last one this kernel knows
                break
            if error.errno != errno.EPERM:  # switching users took the right to drop, and the capabilities with it
                raise
    call("capset", struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24))


def _keep_open(fds: Sequence[int]) -> None:
    """Close every other file descriptor; the standard streams lead nowhere."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    low = 3
    for fd in sorted(fd for fd in set(fds) if fd >= 3):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 16)


@functools.cache
def unavailable() -> str | None:
    """None if the sandbox works here (tried for real, in a helper process with one thread), else the reason."""
    import subprocess  # only here: workers import this module and never need it

    if sys.platform != "linux":
        return f"it needs Linux namespaces, this is {sys.platform}"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROBE, json.dumps([path for path in sys.path if path])],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return "the trial did not end within 60 s"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def probe() -> None:
    """Build a sandbox, check from inside that it holds, and exit with the result."""
    reader, writer = os.pipe()

    def main() -> None:
        os.write(writer, ", ".join(faults()).encode() or b"ok")

    pid = spawn(main, readable=interpreter_paths(), limits=Limits(processes=1), keep=[writer])
    os.close(writer)
    found = os.read(reader, 4096).decode()
    os.waitpid(pid, 0)
    if found != "ok":
        sys.exit(f"the sandbox does not hold: {found or 'it died'}")


def faults() -> list[str]:
    """What a process in a sandbox with `processes=1` can do but should not be able to."""
    found = []
    if os.getpid() != 1:
        found.append("it shares the host's processes")
    with contextlib.suppress(OSError):
        os.close(os.open("/probe", os.O_CREAT | os.O_WRONLY))
        found.append("the root is writable")
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        probe_socket.connect(("192.0.2.1", 9))
        found.append("there is a network")
    with contextlib.suppress(OSError):
        if os.fork() == 0:
            os._exit(0)
        found.append("the limit on processes does not hold")
    with contextlib.suppress(OSError):
        os.close(os.memfd_create("probe"))
        found.append("there is memory that no limit counts")
    return found


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    try:
        call("mount", source, target, kind, flags, data or None)
    except OSError as error:
        raise OSError(error.errno, f"mount {source} on {target}: {os.strerror(error.errno or 0)}") from error
