"""System calls that no judged program needs, refused by a seccomp filter: as if the kernel did not have them.

- memory that no limit counts: pages of a memfd or of System V shared memory belong to no process once unmapped;
- parts of the kernel that have often had holes: io_uring, bpf, perf, keys, userfaultfd;
- other processes of the same user: ptrace and its relatives;
- new namespaces, inside which a program would have capabilities again.

The filter is written out here because the only wrapper on PyPI (pyseccomp) has not had a release for years and needs
the system's libseccomp. It is a list of what is refused, not of what is allowed: programs may use any library.
"""

import ctypes
import errno
import platform
import struct

from offleash.eval.verify.sandbox.limits import PR_SET_NO_NEW_PRIVS, libc, prctl

_CLONE_NEW = 0x7E020000  # every CLONE_NEW* flag
_SHARED = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "clone3": 435,  # its flags lie in memory that a filter cannot read; the C library falls back to clone
    "pidfd_getfd": 438,
    "memfd_secret": 447,
}
_NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": _SHARED
    | {
        **{"shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "memfd_create": 319, "userfaultfd": 323},
        **{"add_key": 248, "request_key": 249, "keyctl": 250, "perf_event_open": 298, "bpf": 321},
        **{"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312},
        **{"unshare": 272, "setns": 308, "open_by_handle_at": 304},
    },
    "aarch64": _SHARED
    | {
        **{"shmget": 194, "shmat": 196, "semget": 190, "msgget": 186, "memfd_create": 279, "userfaultfd": 282},
        **{"add_key": 217, "request_key": 218, "keyctl": 219, "perf_event_open": 241, "bpf": 280},
        **{"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272},
        **{"unshare": 97, "setns": 268, "open_by_handle_at": 265},
    },
}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_X32 = 0x40000000  # the other numbering of the same calls on x86_64
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ABSENT, _FORBIDDEN = 0x7FFF0000, 0x80000000, 0x50000 | errno.ENOSYS, 0x50000 | errno.EPERM
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_syscalls() -> None:
    """For this process and all that it starts, for good. OSError where there is no filter for the machine."""
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise OSError(errno.ENOSYS, f"there is no system-call filter for {machine}, only for {', '.join(_NUMBERS)}")
    instructions = b"".join(_filter(machine))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    program = _Program(len(instructions) // 8, instructions)
    if libc().prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, "the system-call filter could not be installed")


def _filter(machine: str) -> list[bytes]:
    """The BPF program. Jumps count instructions to skip: (if true, if false)."""
    refused = [
        part
        for number in _NUMBERS[machine].values()
        for part in (_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, _ABSENT))
    ]
    return [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, _KILL),  # 32-bit calls have numbers of their own
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, 0, 1),
        _instruction(_RETURN, _ABSENT),
        *refused,
        _instruction(_EQUAL, _CLONE[machine], 0, 3),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_ANY_BIT, _CLONE_NEW, 0, 1),
        _instruction(_RETURN, _FORBIDDEN),
        _instruction(_RETURN, _ALLOW),
    ]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
