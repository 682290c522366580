"""What a worker does to shut itself in, made of a sandbox and of what this machine can do."""

from __future__ import annotations

import math
import struct
from itertools import chain, groupby

from asyncpool._wire.records import Record

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from asyncpool.sandbox import Sandbox

# The rights of files, from the lowest bit, see landlock(7).  One that a sandbox *handles* is refused
# wherever no rule grants it.
_RIGHTS = """
execute write_file read_file read_dir remove_dir remove_file make_char make_dir make_reg make_sock
make_fifo make_block make_sym refer truncate ioctl_dev
"""
_BITS: dict[str, int] = {name: 1 << bit for bit, name in enumerate(_RIGHTS.split())}


def rights(names: str) -> int:
    """Return the bits of some rights of files."""
    return sum(_BITS[name] for name in names.split())


READ = rights("read_file read_dir")
WRITE = READ | rights(
    "write_file remove_dir remove_file make_dir make_reg make_sym refer truncate"
)

# The rights that a rule may grant of what is no folder.
OF_A_FILE = rights("execute write_file read_file truncate ioctl_dev")

CONNECT_TCP = 1 << 1
_ALL_TCP = 1 << 0 | CONNECT_TCP  # BIND_TCP too
_ALL_SCOPES = 1 << 0 | 1 << 1  # abstract sockets and signals

# How many of the rights of files each version of Landlock knows, from 0 on.
_KNOWN = (0, 13, 14, 15, 15, 16)
_FILES_SINCE = 3  # before that, whoever may read a file may empty it
_TCP_SINCE, _SCOPES_SINCE = 4, 6

# From here on no user has a number: some of the kernel takes them for negative.  A worker gets one.
UNUSED_USERS = 1 << 31

# A new network namespace has no way out, and takes abstract sockets along.
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000

# The kernel counts threads, not processes: libraries have these, and a bomb is stopped by them.
_THREADS = 256

# What the kernel counts beside memory: for each process, or for its user, of whom a worker gets no
# more if he has so many.  A dump would hold the memory of the launcher too, and is written by the
# kernel.  Each pair of sockets holds some 400 KiB of the kernel's memory, which RLIMIT_AS does not
# count.  Threads are cancelled by signals that wait, so there must be some.
_BOUNDS = {
    "RLIMIT_CORE": 0,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_SIGPENDING": 128,
    "RLIMIT_MSGQUEUE": 0,
    "RLIMIT_MEMLOCK": 0,
}

# What any program may need, and that tells nothing.
_DEVICES = (
    *((f"/dev/{name}", rights("read_file")) for name in ("zero", "random", "urandom")),
    *((f"/dev/{name}", rights("read_file write_file")) for name in ("null", "full")),
)


class Machine(Record):
    """What this machine can enforce.

    Attributes:
        system: What ``os.uname()`` calls the system, such as ``"Linux"``.
        release: Its version, such as ``"6.12.4"``.
        machine: The kind of processor, such as ``"x86_64"``.
        landlock: The version of Landlock; 0 if there is none.
        seccomp: Whether a process may filter its system calls.
        namespaces: The namespaces that a worker can have.
        limits: The limits that a delegated cgroup offers, such as ``"pids"``.
        root: Whether the service runs as root.
        gives_users: Whether it may then give each worker a real user of its own.
        counts_processes: Whether the kernel counts the processes of each worker apart.
        most_tasks: How many threads there can be on it, in all its processes.
    """

    system: str
    release: str
    machine: str
    landlock: int = 0
    seccomp: bool = False
    namespaces: int = 0
    limits: tuple[str, ...] = ()
    root: bool = False
    gives_users: bool = False
    counts_processes: bool = False
    most_tasks: int = 32768


def missing(sandbox: Sandbox, machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield what this machine cannot enforce of a sandbox: the settings, and what to do about it."""
    if machine.system != "Linux":
        system = machine.system or "another system"
        what = "run the service in a Linux container or virtual machine"
        yield "sandbox", f"a sandbox needs Linux, and this is {system}; {what}"
        return
    kernel = f"this kernel is {machine.release}"
    if not machine.landlock:
        kernel += ", without Landlock: it is switched on by 'landlock' in lsm= at boot"
    needs = "{} cannot be refused, since that needs Landlock {}, and {}; run Linux {} or newer"
    if machine.landlock < _FILES_SINCE:
        what = needs.format("access to files", _FILES_SINCE, kernel, "6.2")
        yield "read, write", what
    if machine.landlock < _TCP_SINCE and not isinstance(sandbox.network, bool):
        what = needs.format("connections to other ports", _TCP_SINCE, kernel, "6.7")
        yield "network", what
    if machine.landlock < _SCOPES_SINCE:
        what = "signals to processes outside of it"
        yield "sandbox", needs.format(what, _SCOPES_SINCE, kernel, "6.12")
    calls = "network, processes"
    if machine.machine not in MACHINES:
        what = f"system calls are filtered on {', '.join(MACHINES)}, and this is "
        yield calls, f"{what}{machine.machine}; run the service on one of those"
    elif not machine.seccomp:
        what = "system calls cannot be filtered, since the kernel refuses seccomp"
        yield calls, f"{what}; allow seccomp in the container's own profile"
    cure = "delegate a cgroup of version 2 to the service (systemd: Delegate=yes)"
    if sandbox.cpus is not None and "cpu" not in machine.limits:
        what = f"the share of the CPUs cannot be limited without a cgroup; {cure}"
        yield f"cpus={sandbox.cpus:g}", what
    counted = machine.counts_processes or "pids" in machine.limits
    if sandbox.processes and not counted:
        what = f"the kernel cannot count the processes of each worker; {cure}, run it "
        what += "as a user that is not root, or set processes=0 or None"
        yield f"processes={sandbox.processes}", what


class SandboxPlan(Record):
    """What a worker does, before its first job.

    Attributes:
        landlock: The rights that Landlock handles: of files, with 0 for no rules at all; of the
            network; and its scopes.
        paths: The rights at each path, and below it.
        ports: The TCP ports that may be connected to.
        filter: The packed program that filters system calls; empty for none.
        rlimits: The kernel's limits: a name, and a soft and a hard limit.
        tasks: How many threads it may have in all its processes; and how many its user may have,
            if the kernel cannot count its own apart, with 0 for a refusal.
        apart: Whether it has a real user of its own, for whom the kernel counts.
        memory: How many bytes of memory the worker may add to what it has.
        namespaces: The namespaces that it makes.
        user: The numbers of the user and the group that it becomes.
        env: Its environment.
        workdir: The folder that it works in; its private folder if there is none.
    """

    landlock: tuple[int, int, int] = (0, 0, 0)
    paths: tuple[tuple[str, int], ...] = ()
    ports: tuple[int, ...] = ()
    filter: bytes = b""
    rlimits: tuple[tuple[str, tuple[int, int]], ...] = ()
    tasks: tuple[int, int] | None = None
    apart: bool = False
    memory: int | None = None
    namespaces: int = 0
    user: tuple[int, int] | None = None
    env: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None


def make_plan(
    sandbox: Sandbox,
    user: tuple[int, int] | None,
    machine: Machine,
    library: tuple[str, ...],
    rlimits: Container[str] = (),
) -> SandboxPlan:
    """Return what workers do; what this machine cannot enforce is left out.

    Args:
        sandbox: The sandbox.
        user: The numbers of the user and the group that its *user* names.
        machine: What this machine can enforce.
        library: The folders of what workers may import.
        rlimits: The names of the kernel's limits that ``worker_limits`` sets.
    """
    plan = SandboxPlan(
        env=tuple(sandbox.env.items()),
        workdir=None if sandbox.workdir is None else str(sandbox.workdir),
    )
    if machine.system != "Linux":
        return plan
    ports = None if sandbox.network is True else tuple(sandbox.network or ())
    forks, tasks = sandbox.processes != 0, None
    if sandbox.processes is not None:
        shared = 0 if forks else machine.most_tasks // 4 * 3
        tasks = sandbox.processes + _THREADS, shared
    # A program that it runs would take another real user for a reason to trust nothing.
    apart = machine.gives_users and user is None and not forks
    code = b""
    if machine.seccomp:
        code = packed(program(machine.machine, ports, forks=forks, apart=apart))
    readable = READ | rights("execute") if forks else READ
    limits = {n: (most, most) for n, most in _BOUNDS.items() if n not in rlimits}
    if sandbox.cpu_seconds is not None:
        soft = max(1, math.ceil(sandbox.cpu_seconds))
        limits["RLIMIT_CPU"] = (soft, soft + 1)
    namespaces = 0 if machine.root else NEW_USER
    if ports == ():
        namespaces |= NEW_NETWORK
    files, network, scopes = landlock_rights(machine.landlock)
    return plan._replace(
        # Without any port there are no sockets, and nothing is left to check.
        landlock=(files, network if ports else 0, scopes),
        paths=(
            *_DEVICES,
            *((str(path), readable) for path in (*sandbox.read, *library)),
            *((str(path), WRITE) for path in sandbox.write),
        ),
        ports=ports or (),
        filter=code,
        rlimits=tuple(limits.items()),
        tasks=tasks,
        apart=apart,
        memory=sandbox.memory,
        namespaces=namespaces & machine.namespaces,
        user=user,
    )


def landlock_rights(version: int) -> tuple[int, int, int]:
    """Return all rights that a version of Landlock knows: of files, of the network, and its scopes."""
    files = (1 << _KNOWN[min(version, len(_KNOWN) - 1)]) - 1
    network = _ALL_TCP if version >= _TCP_SINCE else 0
    scopes = _ALL_SCOPES if version >= _SCOPES_SINCE else 0
    return files, network, scopes


# The filter of system calls: which calls a worker may make, and the kernel's program for that.
#
# What is not in a table here is refused: calls that read or hold other processes, those by which the
# machine is changed, those in which most holes of the kernel were found, and those that use up what
# is counted for a user or for the machine: asynchronous I/O, timers, keys, message queues, watches of
# files and of descriptors.
#
# The program is classic BPF (see seccomp(2)).  It sees the number of a call and its arguments, but
# not what they point to.  So it allows a call as a whole, or by a number or by flags.

# The value of AUDIT_ARCH_* and the column of the tables, by what ``os.uname()`` calls a machine.
MACHINES = {
    "x86_64": (0xC000003E, 0),
    "aarch64": (0xC00000B7, 1),
    "riscv64": (0xC00000F3, 1),
}

# The newest call that somebody has looked at (file_setattr, Linux 6.17).  Later ones, and those of
# x32, a second table of x86-64, are refused as if the kernel had none.
NEWEST = 469

# A call, its number on x86-64, and that on arm64 and riscv64, which share a table.  One number
# stands for both; one that is missing, for a call that the machine does not have.
#
# What every worker may call, a paragraph each: memory, files, waiting, time, signals, the process
# itself, pairs of sockets.  No sendmsg(): descriptors that a message carries are counted for the user
# until it is received.
_ALWAYS = """
brk:12:214 mmap:9:222 munmap:11:215 mprotect:10:226 mremap:25:216 madvise:28:233 msync:26:227
mincore:27:232 membarrier:324:283 pkey_mprotect:329:288 pkey_alloc:330:289 pkey_free:331:290
mseal:462 map_shadow_stack:453

read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69
pwritev:296:70 preadv2:327:286 pwritev2:328:287 lseek:8:62 open:2: openat:257:56 openat2:437
creat:85: close:3:57 close_range:436 dup:32:23 dup2:33: dup3:292:24 fcntl:72:25 ioctl:16:29
flock:73:32 fsync:74:82 fdatasync:75:83 sync_file_range:277:84 fallocate:285:47 fadvise64:221:223
readahead:187:213 ftruncate:77:46 sendfile:40:71 copy_file_range:326:285 cachestat:451 stat:4:
fstat:5:80 lstat:6: newfstatat:262:79 statx:332:291 statfs:137:43 fstatfs:138:44 access:21:
faccessat:269:48 faccessat2:439 getdents:78: getdents64:217:61 getcwd:79:17 chdir:80:49
fchdir:81:50 mkdir:83: mkdirat:258:34 rmdir:84: rename:82: renameat:264:38 renameat2:316:276
link:86: linkat:265:37 unlink:87: unlinkat:263:35 symlink:88: symlinkat:266:36 readlink:89:
readlinkat:267:78 umask:95:166 fgetxattr:193:10 flistxattr:196:13

poll:7: ppoll:271:73 select:23: pselect6:270:72 epoll_ctl:233:21 epoll_wait:232: epoll_pwait:281:22
epoll_pwait2:441 eventfd:284: eventfd2:290:19 signalfd:282: signalfd4:289:74
timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87 pipe:22: pipe2:293:59
futex:202:98 futex_waitv:449 futex_wake:454 futex_wait:455 futex_requeue:456
set_robust_list:273:99 rseq:334:293

clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115 gettimeofday:96:169 time:201:
nanosleep:35:101 times:100:153 getrusage:98:165 getitimer:36:102 setitimer:38:103 alarm:37:
pause:34: sysinfo:99:179 uname:63:160 getcpu:309:168 getrandom:318:278

rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136
rt_sigtimedwait:128:137 rt_sigsuspend:130:133 sigaltstack:131:132 kill:62:129 tkill:200:130
tgkill:234:131 restart_syscall:219:128

getpid:39:172 getppid:110:173 gettid:186:178 getpgrp:111: getpgid:121:155 getsid:124:156
getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getgroups:115:158 getresuid:118:148
getresgid:120:150 capget:125:90 prctl:157:167 arch_prctl:158: set_tid_address:218:96 exit:60:93
exit_group:231:94 clone:56:220 getrlimit:97:163 setrlimit:160:164 prlimit64:302:261
getpriority:140:141 setpriority:141:140 ioprio_get:252:31 ioprio_set:251:30 sched_yield:24:124
sched_getaffinity:204:123 sched_setaffinity:203:122 sched_getparam:143:121 sched_setparam:142:118
sched_getscheduler:145:120 sched_setscheduler:144:119 sched_getattr:315:275 sched_setattr:314:274
sched_get_priority_max:146:125 sched_get_priority_min:147:126 sched_rr_get_interval:148:127
personality:135:92 riscv_flush_icache::259 riscv_hwprobe::258

socketpair:53:199 sendto:44:206 recvfrom:45:207 recvmsg:47:212 recvmmsg:299:243 shutdown:48:210
getsockname:51:204 getpeername:52:205 getsockopt:55:209 setsockopt:54:208
"""
# The watches of an epoll are counted for the user, and programs and clients do not run without one.
_EPOLL = "epoll_create:213: epoll_create1:291:20"
_SOCKETS = "socket:41:198 connect:42:203 sendmsg:46:211 sendmmsg:307:269"
_LISTENING = "bind:49:200 listen:50:201 accept:43:202 accept4:288:242"
_PROCESSES = """
fork:57: vfork:58: execve:59:221 wait4:61:260 waitid:247:95 setpgid:109:154 setsid:112:157
"""

# Upon this answer libraries use clone(), whose flags are no memory, where the filter cannot look;
# and programs such as ls expect this from file systems that keep no attributes.  To read those the
# path is enough.
_NOT_THERE = "clone3:435"
_NO_ATTRIBUTES = """
getxattr:191:8 lgetxattr:192:9 getxattrat:464 listxattr:194:11 llistxattr:195:12 listxattrat:465
"""

# An instruction: its code, how many to skip if it is true, and if not, and its operand.
Instruction = tuple[int, int, int, int]
Code = tuple[Instruction, ...]

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_SKIP = 0x05  # BPF_JMP | BPF_JA
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
KILL = 0x80000000  # SECCOMP_RET_KILL_PROCESS
ERROR = 0x00050000  # SECCOMP_RET_ERRNO

# Linux's numbers, which the module errno of another system would not have.
EPERM, ENOSYS, ENOTSUP = 1, 38, 95

# struct seccomp_data: the number, the machine, the instruction pointer, six arguments.
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
_ALL_BITS = 0xFFFFFFFF


def _answer(value: int) -> Code:
    return ((_RETURN, 0, 0, value),)


_REFUSED, _ALLOWED = _answer(ERROR | EPERM), _answer(ALLOW)


def _bits(argument: int, mask: int) -> Code:
    """Return what loads these bits of an argument, of which the lower 32 count."""
    load = (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)
    return (load,) if mask == _ALL_BITS else (load, (_AND, 0, 0, mask))


def _only(argument: int, *values: int, mask: int = _ALL_BITS) -> Code:
    """Refuse a call unless these bits of an argument are one of *values*."""
    # Each skips the other values, and the refusal behind them.
    last = len(values)
    tests = ((_EQUAL, last - i, 0, value) for i, value in enumerate(values))
    return *_bits(argument, mask), *tests, *_REFUSED


def _never(argument: int, *values: int, mask: int = _ALL_BITS) -> Code:
    """Refuse a call if these bits of an argument are one of *values*."""
    tests = (((_EQUAL, 0, 1, value), *_REFUSED) for value in values)
    return *_bits(argument, mask), *chain(*tests)


def _without(argument: int, bits: int) -> Code:
    return _only(argument, 0, mask=bits)


def _given(argument: int, value: int, check: Code) -> Code:
    """Return a check that counts only if an argument has this value."""
    return *_bits(argument, _ALL_BITS), (_EQUAL, 0, len(check), value), *check


_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET = 1, 5
_TYPE = 0xF  # of a socket, without its flags
_TCP = 6
_MSG_FASTOPEN = 0x20000000
_SOL_SOCKET, _SO_PEERPIDFD = 1, 77
_RLIMIT_LOCKS = 10

# Names of threads; what a process asks about itself, and whether it ends with its parent.
_PRCTL = (
    *(1, 2),  # PR_SET_PDEATHSIG, PR_GET_PDEATHSIG
    3,  # PR_GET_DUMPABLE
    *(15, 16),  # PR_SET_NAME, PR_GET_NAME
    *(21, 23),  # PR_GET_SECCOMP, PR_CAPBSET_READ
    *(38, 39),  # PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS
    51,  # PR_SVE_GET_VL, of libraries that compute on arm64
)

# What is looked at before a call is allowed.
_CHECKS: dict[str, Code] = {
    # Pages of MAP_HUGETLB are counted for the machine; those of MAP_LOCKED cannot be swapped out.
    "mmap": _without(3, 0x40000 | 0x2000),
    # New namespaces: mounts, cgroups, host names, IPC, users, processes, network.
    "clone": _without(0, 0x7E020000),
    # These take the number of a process, 0 for the caller; the kernel asks for the same user only.
    **dict.fromkeys(
        ["sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"],
        _only(0, 0),
    ),
    # By RLIMIT_LOCKS the launcher knows whose descendant a process is, see _worker/launcher.py.
    "prlimit64": _only(0, 0) + _never(1, _RLIMIT_LOCKS),
    "setrlimit": _never(0, _RLIMIT_LOCKS),
    "setpriority": _only(0, 0) + _only(1, 0),  # PRIO_PROCESS
    # IOPRIO_WHO_PROCESS
    **dict.fromkeys(("ioprio_get", "ioprio_set"), _only(0, 1) + _only(1, 0)),
    # The clock of a process, by its number, tells how much CPU time it has had, whosever it is.
    # Of threads the kernel tells a process only those of its own.
    **dict.fromkeys(
        ("clock_gettime", "clock_getres", "clock_nanosleep"),
        _never(0, 0x80000000, mask=0x80000004),
    ),
    # Some others take memory of the kernel: a hash table for futexes up to 1 GiB.
    "prctl": _only(0, *_PRCTL),
    "personality": _only(0, 0, _ALL_BITS),  # the last only asks
    "ioctl": _never(
        1,
        # Keys pressed on a terminal, as it were: TIOCSTI, TIOCLINUX, TIOCSETD.
        *(0x5412, 0x541C, 0x5423),
        # These change a file, and a descriptor for reading is enough for its owner.
        *(0x40086602, 0x40046602),  # FS_IOC_SETFLAGS, and of programs of 32 bits
        *(0x40087602, 0x40047602),  # FS_IOC_SETVERSION, likewise
        *(0x40086604, 0x401C5820),  # EXT4_IOC_SETVERSION, FS_IOC_FSSETXATTR
        # FS_IOC_ENABLE_VERITY, FS_IOC_SET_ENCRYPTION_POLICY, FAT_IOCTL_SET_ATTRIBUTES
        *(0x40806685, 0x800C6613, 0x40047211),
    )
    # All that tells of a process by its pidfd; multiprocessing has one of the service.
    + _never(1, 0xFF00, mask=0xFF00),
    # A lease stops whoever else opens the file, for 45 s; a descriptor for reading is enough.
    # A watch of a folder tells who works there.  The memory of a user's pipes is counted.
    "fcntl": _never(1, 1024, 1026, 1031),  # F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ
    # CLOSE_RANGE_UNSHARE, likewise a table of its own.
    "close_range": _without(2, 2),
    "getsockopt": _never(2, _SO_PEERPIDFD),
    # The buffers of a socket, and its filters, are memory of the kernel.
    "setsockopt": _given(
        1,
        _SOL_SOCKET,
        _never(
            2,
            *(7, 8, 32, 33),  # SO_SNDBUF, SO_RCVBUF, and both with FORCE
            *(26, 50, 51),  # SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF
        ),
    ),
    # A pair is connected, and of these types it stays so.  asyncio needs one for itself.
    "socketpair": _only(0, _AF_UNIX)
    + _only(1, _SOCK_STREAM, _SOCK_SEQPACKET, mask=_TYPE),
}


def program(
    machine: str, ports: tuple[int, ...] | None, *, forks: bool, apart: bool
) -> Code:
    """Return the program that the kernel runs for each call.

    Args:
        machine: One of :data:`MACHINES`.
        ports: The TCP ports that may be connected to, which Landlock checks; ``None`` for the
            whole network.
        forks: Whether new processes are allowed; threads always are.
        apart: Whether the kernel counts for this worker alone what it counts for a user.
    """
    arch, column = MACHINES[machine]
    tables, checks = [_ALWAYS], {**_CHECKS}
    if apart or forks or ports != ():
        tables.append(_EPOLL)
    if forks:
        tables.append(_PROCESSES)
    else:
        # CLONE_THREAD, and CLONE_FILES and CLONE_VM: a table of descriptors of its own would have
        # its own limit.
        checks["clone"] += _only(0, 0x00010500, mask=0x00010500)
    if ports != ():
        tables.append(_SOCKETS)
    if ports is None:
        tables.append(_LISTENING)
        checks["socket"] = _only(0, _AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
        checks["socketpair"] = ()
    elif ports:
        # Neither UDP nor Unix sockets, and no other protocol over TCP, such as MPTCP: Landlock
        # checks none of them.  Nor does it see a connection that a message opens.  To listen
        # without a bind() takes a free port, at all addresses.
        kind = _only(1, _SOCK_STREAM, mask=_TYPE)
        checks["socket"] = _only(0, _AF_INET, _AF_INET6) + kind + _only(2, 0, _TCP)
        checks["sendto"] = checks["sendmmsg"] = _without(3, _MSG_FASTOPEN)
        checks["sendmsg"] = _without(2, _MSG_FASTOPEN)
    answers = {NEWEST + 1: _answer(ERROR | ENOSYS)}
    for table, error in ((_NOT_THERE, ENOSYS), (_NO_ATTRIBUTES, ENOTSUP)):
        for _, number in _numbers(table, column):
            answers[number] = _answer(ERROR | error)
    for name, number in _numbers(" ".join(tables), column):
        answers[number] = checks.get(name, ()) + _ALLOWED
    calls = groupby(range(NEWEST + 2), lambda number: answers.get(number, _REFUSED))
    return (
        (_LOAD, 0, 0, _MACHINE),
        # Another table of calls, such as that of 32-bit programs, has other numbers.
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_tree([(next(numbers), answer) for answer, numbers in calls]),
    )


def _numbers(table: str, column: int) -> Iterator[tuple[str, int]]:
    for word in table.split():
        name, *numbers = word.split(":")
        number = numbers[column] if len(numbers) > 1 else numbers[0]
        if number:
            yield name, int(number)


def _tree(ranges: list[tuple[int, Code]]) -> Code:
    """Return the search for the range that a number is in: eight steps, where a list has 200."""
    if len(ranges) == 1:
        return ranges[0][1]
    half = len(ranges) // 2
    below, above = _tree(ranges[:half]), _tree(ranges[half:])
    # A test skips 255 instructions at most.
    split = (_AT_LEAST, 0, 1, ranges[half][0]), (_SKIP, 0, 0, len(below))
    return *split, *below, *above


def packed(code: Iterable[Instruction]) -> bytes:
    """Return a program as the kernel takes it: an array of ``struct sock_filter``."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


# Refuses io_uring_setup(), which has this number everywhere, and nothing else.
_RING_TEST = (_LOAD, 0, 0, _NUMBER), (_EQUAL, 0, 1, 425)
NO_RINGS = packed((*_RING_TEST, *_answer(ERROR | ENOSYS), *_ALLOWED))
