"""The sandbox from inside: what a process in it can see and do. Each test runs a real one."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.verify.sandbox import confine

pytestmark = pytest.mark.skipif(confine.unavailable() is not None, reason=f"no sandbox: {confine.unavailable()}")


def inside(code: str, **limits: int) -> Any:
    """Run code in a sandbox of a fresh process and return what it put in `result`."""
    script = textwrap.dedent(
        f"""
        import json, os
        from offleash.eval.verify.sandbox import confine
        from offleash.eval.verify.sandbox.limits import Limits
        reader, writer = os.pipe()
        outside_file = os.open("/etc/hosts", os.O_RDONLY)
        def main():
            result = None
            try:
                namespace = {{"outside_file": outside_file}}
                exec({textwrap.dedent(code)!r}, namespace)
                result = namespace.get("result")
            except BaseException as error:
                result = f"{{type(error).__name__}}: {{error}}"
            os.write(writer, json.dumps(result).encode())
        limits = Limits(**{limits!r})
        pid = confine.spawn(main, readable=confine.interpreter_paths(), limits=limits, keep=[writer])
        os.close(writer)
        data = b""
        while block := os.read(reader, 65536): data += block
        os.waitpid(pid, 0)
        print(data.decode())
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_sees_its_own_folders_and_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    code = f"""
    import os
    result = dict(root=sorted(os.listdir("/")), secret=os.path.exists({str(tmp_path / "secret")!r}),
                  home=os.path.exists({str(Path.home() / ".bashrc")!r}), passwd=os.path.exists("/etc/passwd"),
                  proc=os.path.exists("/proc/self"), cwd=os.getcwd(), pid=os.getpid(), environment=dict(os.environ))
    """
    seen = inside(code)
    assert not seen["secret"]
    assert not seen["home"]
    assert not seen["passwd"]
    assert not seen["proc"]
    assert seen["pid"] == 1
    assert seen["cwd"] == confine.SCRATCH
    assert seen["environment"] == {"HOME": confine.SCRATCH, "TMPDIR": confine.SCRATCH}
    shown = {path.split("/")[1] for path in confine.interpreter_paths()}
    assert set(seen["root"]) <= shown | {"dev", "tmp", confine.SCRATCH.strip("/")}


def test_it_writes_only_to_its_scratch_folder_and_not_without_end() -> None:
    code = """
    import os, sys
    def attempt(action):
        try: action(); return "done"
        except OSError as error: return type(error).__name__
    result = dict(
        scratch=attempt(lambda: open("note", "w").write("x")),
        tmp=attempt(lambda: open("/tmp/note2", "w").write("x")),
        root=attempt(lambda: open("/note", "w")),
        usr=attempt(lambda: open("/usr/note", "w")),
        python=attempt(lambda: open(sys.executable, "ab")),
        chmod=attempt(lambda: os.chmod("/usr/bin", 0o777)),
        utime=attempt(lambda: os.utime(os.__file__)),
        remove=attempt(lambda: os.remove(os.__file__)),
        remount=attempt(lambda: os.mkdir("/usr/x")),
        device=attempt(lambda: os.mknod("disk", 0o60600, os.makedev(8, 0))),
        null=attempt(lambda: open("/dev/null", "w").write("x")),
        large=attempt(lambda: open("large", "wb").write(bytes(40 << 20))),
    )
    """
    done = inside(code)
    assert done.pop("scratch") == done.pop("tmp") == done.pop("null") == "done"
    assert "done" not in done.values(), done


def test_it_has_no_network_not_even_to_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"""
        import socket
        def attempt(action):
            try: action(); return "connected"
            except OSError as error: return "refused"
        result = [attempt(lambda: socket.create_connection(("127.0.0.1", {port}), 2)),
                  attempt(lambda: socket.create_connection(("1.1.1.1", 53), 2)),
                  attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("8.8.8.8", 53)))]
        """
        assert inside(code) == ["refused"] * 3


def test_it_cannot_see_or_signal_processes_outside() -> None:
    code = f"""
    import os
    def attempt(pid):
        try: os.kill(pid, 0); return True
        except OSError: return False
    result = [attempt({os.getpid()}), attempt(os.getppid() or 99999)]
    """
    assert inside(code) == [False, False]


def test_it_has_no_capability_and_cannot_get_one() -> None:
    code = """
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    attempts = dict(
        user_namespace=libc.unshare(0x10000000),
        mount_namespace=libc.unshare(0x00020000),
        mount=libc.mount(b"tmpfs", b"/scratch", b"tmpfs", 0, None),
        umount=libc.umount2(b"/usr", 2),
        chroot=libc.chroot(b"/scratch"),
        hostname=libc.sethostname(b"x", 1),
        setuid=libc.setuid(0) if os.getuid() else -1,
        shared_memory=libc.shmget(0, 1 << 20, 0o1600),
    )
    result = attempts
    """
    assert set(inside(code).values()) == {-1}


def test_it_does_not_inherit_open_files() -> None:
    assert "OSError" in inside("import os; os.read(outside_file, 1)")


def test_it_is_limited_in_processes_memory_and_open_files() -> None:
    code = """
    import os, resource
    forked = 0
    try:
        while forked < 200:
            if os.fork() == 0:
                import time; time.sleep(600)
            forked += 1
    except OSError: pass
    memory = "held"
    try: bytearray(2 << 30)
    except MemoryError: memory = "refused"
    files = []
    try:
        while len(files) < 1000: files.append(open("/dev/null"))
    except OSError: pass
    result = [forked, memory, len(files)]
    """
    forked, memory, files = inside(code, processes=8)
    assert forked < 8
    assert memory == "refused"
    assert files < 64


def test_what_it_started_dies_with_it() -> None:
    marker = f"sleeper-{os.getpid()}"
    python = str(Path(sys.executable).resolve())
    code = f"""
    import os
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv({python!r}, [{python!r}, "-I", "-c", "import time; time.sleep(600) # {marker}"])
            os._exit(0)
    import time; time.sleep(0.5)
    result = "left them"
    """
    assert inside(code) == "left them"
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert not [
        line for line in running.splitlines() if marker in line and "time.sleep" in line and "spawn" not in line
    ]


def test_killing_the_waiting_process_kills_everything_inside() -> None:
    script = textwrap.dedent(
        """
        import os, sys, time
        from offleash.eval.verify.sandbox import confine
        from offleash.eval.verify.sandbox.limits import Limits, kill_and_reap
        def main():
            for _ in range(3): os.fork()
            time.sleep(600)
        pid = confine.spawn(main, readable=confine.interpreter_paths(), limits=Limits())
        import psutil
        deadline = time.monotonic() + 20
        while len(inside := psutil.Process(pid).children(recursive=True)) < 8 and time.monotonic() < deadline:
            time.sleep(0.05)
        kill_and_reap(pid)
        _, alive = psutil.wait_procs(inside, timeout=20)
        print(len(inside), len(alive))
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["8", "0"], done.stderr


def test_the_probe_finds_a_protection_that_is_missing() -> None:
    code = "import sys; result = sys.modules['offleash.eval.verify.sandbox.confine'].faults()"
    assert inside(code, processes=1) == []
    assert inside(code, processes=8) == ["the limit on processes does not hold"]


def test_the_whole_file_system_is_never_shown() -> None:
    with pytest.raises(ValueError, match="file system"):
        confine.minimal(["/usr", "/"])
    assert confine.minimal(["/usr/bin", "/usr", "/no/such/folder"]) == ["/usr"]
