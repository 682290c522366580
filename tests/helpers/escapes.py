"""Ways out of a worker: each does something to the service, to its neighbours or to the machine.

An attempt returns if it has got out, and raises if it was stopped.  None does harm where it succeeds:
the files and the process that it works on are there for it alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

SECRET = "a secret of the service"
VARIABLE = "A_SECRET_OF_THE_SERVICE"


class Target(NamedTuple):
    """What is there to get at, outside of a worker.

    Attributes:
        folder: A folder with files that belong to the service; one for each attempt.
        closed: A file that workers may read, and whose mode forbids it to all but root.
        service: The pid of the service.
        launcher: The pid of its launcher.
        sibling: The pid of another worker.
        victim: The pid of a process that sleeps.
        tcp: A port that somebody listens at.
        udp: Another one.
        stream: The path of a Unix socket that somebody listens at.
        datagram: The path of one that takes datagrams.
        abstract: The name of an abstract socket.
        key: The key by which processes of multiprocessing let each other in.
    """

    folder: str
    closed: str
    service: int
    launcher: int
    sibling: int
    victim: int
    tcp: int
    udp: int
    stream: str
    datagram: str
    abstract: str
    key: bytes


class Attempt(NamedTuple):
    """One way out.

    Attributes:
        group: What it is about.
        name: What it does.
        stopped_by: What stops it.
        run: Does it.
        root: Whether only root can do it outside of a sandbox.
    """

    group: str
    name: str
    stopped_by: str
    run: Callable[[Target], object]
    root: bool = False


ATTEMPTS: list[Attempt] = []
_Run = Callable[[Target], object]


def attempt_by(number: int, target: Target) -> str:
    """Make an attempt in a worker; return what it has got."""
    return f"{ATTEMPTS[number].run(target)!r}"[:200]


def _way(
    group: str, name: str, stopped_by: str, *, root: bool = False
) -> Callable[[_Run], _Run]:
    def add(run: _Run) -> _Run:
        ATTEMPTS.append(Attempt(group, name, stopped_by, run, root))
        return run

    return add


_libc = ctypes.CDLL(None, use_errno=True)

# Calls without a function in the libraries of C, by their numbers on x86-64 and on other machines.
_NUMBERS = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "fanotify_init": (300, 262),
    "inotify_add_watch": (254, 27),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "ioprio_get": (252, 31),
    "listmount": (458, 458),
    "mount": (165, 40),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "prctl": (157, 167),
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
    "rt_sigqueueinfo": (129, 138),
    "semctl": (66, 191),
    "semget": (64, 190),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "statmount": (457, 457),
    "syslog": (103, 116),
    "timer_create": (222, 107),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}


def system_call(name: str, *arguments: object) -> int:
    """Make a system call."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    number = _NUMBERS[name][os.uname().machine != "x86_64"]
    answer = int(_libc.syscall(ctypes.c_long(number), *words))
    if answer < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return answer


def _file(target: Target) -> str:
    """Return a file of the service's that no other attempt has."""
    name = sys._getframe(1).f_code.co_name
    return f"{target.folder}/{name}"


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


# Files.


@_way("files", "read a file of the service", "Landlock")
def read(target: Target) -> str:
    return Path(_file(target)).read_text()


@_way("files", "list its folder", "Landlock")
def list_folder(target: Target) -> int:
    return len(os.listdir(target.folder))


@_way("files", "overwrite its file", "Landlock")
def overwrite(target: Target) -> int:
    return Path(_file(target)).write_text("mine")


@_way("files", "append to its file", "Landlock")
def append(target: Target) -> int:
    with open(_file(target), "a") as file:
        return file.write("mine")


@_way("files", "empty its file by its path", "seccomp, Landlock")
def truncate(target: Target) -> None:
    os.truncate(_file(target), 0)


@_way("files", "delete its file", "Landlock")
def delete(target: Target) -> None:
    os.unlink(_file(target))


@_way("files", "move its file into the own folder", "Landlock")
def move(target: Target) -> None:
    os.rename(_file(target), f"moved-{os.getpid()}")


@_way("files", "exchange it for an own file", "Landlock")
def replace(target: Target) -> None:
    mine = f"mine-{os.getpid()}"
    Path(mine).write_text("mine")
    os.replace(mine, _file(target))


@_way("files", "read it through a hard link in the own folder", "Landlock")
def hard_link(target: Target) -> str:
    os.link(_file(target), f"hard-{os.getpid()}")
    return Path(f"hard-{os.getpid()}").read_text()


@_way("files", "read it through a symbolic link in the own folder", "Landlock")
def symbolic_link(target: Target) -> str:
    os.symlink(_file(target), f"soft-{os.getpid()}")
    return Path(f"soft-{os.getpid()}").read_text()


@_way("files", "read it by way of ..", "Landlock")
def dots(target: Target) -> str:
    return Path(f"{'../' * 20}{_file(target)}").read_text()


@_way("files", "read it by way of /proc/self/root", "Landlock")
def own_root(target: Target) -> str:
    return Path(f"/proc/self/root{_file(target)}").read_text()


@_way("files", "read it by way of a descriptor of the root folder", "Landlock")
def at_root(target: Target) -> str:
    with (
        _closing(os.open("/", os.O_PATH)) as root,
        _closing(os.open(_file(target)[1:], os.O_RDONLY, dir_fd=root)) as fd,
    ):
        return os.read(fd, 100).decode()


@_way("files", "create a file beside it", "Landlock")
def create(target: Target) -> None:
    Path(f"{target.folder}/new").touch()


@_way("files", "create a folder beside it", "Landlock")
def create_folder(target: Target) -> None:
    os.mkdir(f"{target.folder}/folder")


@_way("files", "create a named pipe", "seccomp, Landlock")
def create_pipe(target: Target) -> None:
    os.mkfifo(f"pipe-{os.getpid()}")  # its memory is counted for the user


@_way("files", "create a file in /dev/shm", "Landlock")
def shared_file(target: Target) -> None:
    path = Path(f"/dev/shm/asyncpool-escape-{os.getpid()}")
    path.touch()
    path.unlink()


@_way("files", "make a device in the own folder", "seccomp, Landlock", root=True)
def device(target: Target) -> None:
    os.mknod(f"null-{os.getpid()}", 0o20666, os.makedev(1, 3))


@_way("files", "change the mode of its file", "seccomp")
def change_mode(target: Target) -> None:
    os.chmod(_file(target), 0o777)


@_way("files", "change the owner of its file", "seccomp")
def change_owner(target: Target) -> None:
    os.chown(_file(target), os.getuid(), os.getgid())


@_way("files", "change the times of its file", "seccomp")
def change_times(target: Target) -> None:
    os.utime(_file(target), (0, 0))


@_way("files", "give its file an attribute", "seccomp")
def attribute(target: Target) -> None:
    os.setxattr(_file(target), "user.asyncpool", b"mine")


@_way("files", "list the attributes of its file", "seccomp")
def list_attributes(target: Target) -> list[str]:
    return os.listxattr(_file(target))


@_way("files", "watch its folder (inotify)", "seccomp")
def watch(target: Target) -> None:
    with _closing(system_call("inotify_init1", os.O_CLOEXEC)) as fd:
        system_call("inotify_add_watch", fd, target.folder.encode(), 0x100)  # IN_CREATE


@_way("files", "be told of changes in a folder (F_NOTIFY)", "seccomp")
def notices(target: Target) -> None:
    with _closing(os.open(".", os.O_RDONLY)) as fd:
        fcntl.fcntl(fd, fcntl.F_NOTIFY, 0)


@_way("files", "stop others who open a file, by a lease", "seccomp")
def lease(target: Target) -> None:
    path = f"lease-{os.getpid()}"
    Path(path).touch()
    with _closing(os.open(path, os.O_RDONLY)) as fd:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)


@_way("files", "change the flags of a file that it may read", "seccomp")
def flags(target: Target) -> None:
    path = f"flags-{os.getpid()}"
    Path(path).touch()
    with _closing(os.open(path, os.O_RDONLY)) as fd:
        # FS_IOC_SETFLAGS, FS_NODUMP_FL
        fcntl.ioctl(fd, 0x40086602, struct.pack("=Q", 0x40))


@_way("files", "open it by a handle, past all folders", "seccomp", root=True)
def handle(target: Target) -> None:
    place = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    path = _file(target).encode()
    system_call("name_to_handle_at", -100, path, place, ctypes.byref(mount), 0)
    with _closing(os.open("/", os.O_RDONLY)) as root:
        os.close(system_call("open_by_handle_at", root, place, os.O_PATH))


@_way("files", "read what only root may read, as root", "no capabilities", root=True)
def closed(target: Target) -> str:
    return Path(target.closed).read_text()


# /proc, and what the worker has from the service.


@_way("/proc", "read the environment of the service", "Landlock")
def their_environment(target: Target) -> int:
    return len(Path(f"/proc/{target.service}/environ").read_bytes())


@_way("/proc", "read the memory of the service", "Landlock")
def their_memory(target: Target) -> None:
    os.close(os.open(f"/proc/{target.service}/mem", os.O_RDONLY))


@_way("/proc", "read the memory map of a sibling", "Landlock")
def their_map(target: Target) -> int:
    return len(Path(f"/proc/{target.sibling}/maps").read_text())


@_way("/proc", "list the descriptors of the launcher", "Landlock")
def their_descriptors(target: Target) -> int:
    return len(os.listdir(f"/proc/{target.launcher}/fd"))


@_way("/proc", "read a file by way of the root of the service", "Landlock")
def their_root(target: Target) -> str:
    return Path(f"/proc/{target.service}/root{_file(target)}").read_text()


@_way("/proc", "read the command line of the service", "Landlock")
def their_command(target: Target) -> bytes:
    return Path(f"/proc/{target.service}/cmdline").read_bytes()


@_way("/proc", "list the processes of the machine", "Landlock")
def processes(target: Target) -> int:
    return len(os.listdir("/proc"))


@_way("/proc", "have the kernel spare this process when memory is short", "Landlock")
def spare_me(target: Target) -> None:
    Path("/proc/self/oom_score_adj").write_text("0")


@_way("/proc", "change a setting of the kernel", "Landlock", root=True)
def setting(target: Target) -> None:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


@_way("inheritance", "find a secret in the environment", "an empty environment")
def environment(target: Target) -> str:
    return os.environ[VARIABLE]


@_way("inheritance", "find it where the environment lay at the start", "Landlock")
def first_environment(target: Target) -> bytes:
    text = Path("/proc/self/environ").read_bytes()
    if VARIABLE.encode() not in text:
        raise LookupError("it is not there")
    return text


@_way("inheritance", "find the key of multiprocessing", "another key")
def key(target: Target) -> None:
    import multiprocessing

    if bytes(multiprocessing.current_process().authkey) != target.key:
        raise LookupError("it is another key")


@_way("inheritance", "find the arguments of the service", "none are told")
def arguments(target: Target) -> str:
    return sys.argv[1]


@_way("inheritance", "look around in the folder of the service", "a folder of its own")
def working_folder(target: Target) -> int:
    here = Path.cwd()
    if os.environ.get("TMPDIR") == str(here):
        raise LookupError("it is a private folder")
    return len(os.listdir(here))


# Other processes.


@_way("processes", "signal the service", "Landlock")
def signal_service(target: Target) -> None:
    os.kill(target.service, signal.SIGCONT)


@_way("processes", "signal the launcher", "Landlock")
def signal_launcher(target: Target) -> None:
    os.kill(target.launcher, signal.SIGCONT)


@_way("processes", "signal a sibling", "Landlock")
def signal_sibling(target: Target) -> None:
    os.kill(target.sibling, signal.SIGCONT)


@_way("processes", "signal a process by its pidfd", "seccomp, Landlock")
def signal_by_pidfd(target: Target) -> None:
    with _closing(os.pidfd_open(target.victim)) as fd:
        signal.pidfd_send_signal(fd, signal.SIGCONT)


@_way("processes", "trace a process", "seccomp, Landlock", root=True)
def trace(target: Target) -> None:
    system_call("ptrace", 0x4206, target.victim, 0, 0)  # PTRACE_SEIZE


@_way("processes", "read the memory of a process", "seccomp, Landlock", root=True)
def read_memory(target: Target) -> None:
    here = ctypes.create_string_buffer(8)
    line = Path(f"/proc/{target.victim}/maps")
    start = int(line.read_text().split("-")[0], 16) if _can_read(line) else 1 << 22
    local = struct.pack("=QQ", ctypes.addressof(here), 8)
    remote = struct.pack("=QQ", start, 8)
    system_call("process_vm_readv", target.victim, local, 1, remote, 1, 0)


def _can_read(path: Path) -> bool:
    try:
        path.read_text()
    except OSError:
        return False
    return True


@_way("processes", "take a descriptor of a process", "seccomp, Landlock", root=True)
def take_descriptor(target: Target) -> None:
    with _closing(os.pidfd_open(target.victim)) as fd:
        os.close(system_call("pidfd_getfd", fd, 0, 0))


@_way("processes", "ask who is at the other end of a socket (SO_PEERPIDFD)", "seccomp")
def peer(target: Target) -> None:
    one, other = socket.socketpair()
    with one, other:
        os.close(one.getsockopt(socket.SOL_SOCKET, 77))


@_way("processes", "ask a pidfd about its process (PIDFD_GET_INFO)", "seccomp")
def process_info(target: Target) -> None:
    # The filter looks at the request before the kernel looks at the descriptor.
    with _pidfd(target.victim) as fd:
        fcntl.ioctl(fd, 0xC040FF0B, struct.pack("=Q", 1).ljust(64, b"\0"))


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    try:
        fd = os.pidfd_open(pid)
    except PermissionError:
        fd = os.open("/dev/null", os.O_RDONLY)
    with _closing(fd):
        yield fd


@_way("processes", "limit another process", "seccomp")
def limit(target: Target) -> None:
    resource.prlimit(target.victim, resource.RLIMIT_NOFILE, (64, 64))


@_way("processes", "slow another process down", "seccomp")
def slow(target: Target) -> None:
    os.setpriority(os.PRIO_PROCESS, target.victim, 19)


@_way("processes", "keep another process on one core", "seccomp")
def pin(target: Target) -> None:
    os.sched_setaffinity(target.victim, {min(os.sched_getaffinity(0))})


@_way("processes", "read the CPU time of another process", "seccomp")
def cpu_time(target: Target) -> float:
    return time.clock_gettime(~target.victim << 3 | 2)


@_way("processes", "read the I/O priority of another process", "seccomp")
def io_priority(target: Target) -> int:
    return system_call("ioprio_get", 1, target.victim)


@_way("processes", "fork", "seccomp (processes=0)")
def fork(target: Target) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@_way("processes", "fork again and again", "seccomp (processes=0)")
def bomb(target: Target) -> int:
    pids: list[int] = []
    try:
        for _ in range(20):  # enough to show that nobody stops it
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            pids.append(pid)
    finally:
        for pid in pids:
            os.waitpid(pid, 0)
    return len(pids)


@_way("processes", "run a program", "seccomp (processes=0)")
def run(target: Target) -> int:
    return subprocess.run(["/bin/true"], check=True).returncode


@_way("processes", "run a program from memory", "seccomp")
def run_from_memory(target: Target) -> int:
    fd = os.memfd_create("program", 0)
    with _closing(fd):
        os.write(fd, Path("/bin/true").read_bytes())
        path = f"/proc/self/fd/{fd}"
        return subprocess.run([path], check=True, pass_fds=[fd]).returncode


# The network, and what is like it.


@_way("network", "connect to a port of this machine", "seccomp")
def connect(target: Target) -> None:
    socket.create_connection(("127.0.0.1", target.tcp), timeout=5).close()


@_way("network", "send a datagram", "seccomp")
def send(target: Target) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return sock.sendto(SECRET.encode(), ("127.0.0.1", target.udp))


@_way("network", "listen at a port", "seccomp")
def listen(target: Target) -> None:
    socket.create_server(("127.0.0.1", 0)).close()


@_way("network", "connect to a Unix socket", "seccomp")
def connect_unix(target: Target) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(target.stream)


@_way("network", "connect to an abstract socket", "seccomp")
def connect_abstract(target: Target) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(f"\0{target.abstract}")


@_way("network", "send to a Unix socket from one of a pair", "seccomp")
def send_from_pair(target: Target) -> int:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        return one.sendto(SECRET.encode(), target.datagram)


@_way("network", "ask the kernel about the network (netlink)", "seccomp")
def netlink(target: Target) -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()


@_way("network", "read all packets", "seccomp", root=True)
def packets(target: Target) -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()


@_way("network", "use the cryptography of the kernel (AF_ALG)", "seccomp")
def algorithms(target: Target) -> None:
    socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET, 0).close()


@_way("network", "talk to the host of a virtual machine (vsock)", "seccomp")
def vsock(target: Target) -> None:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM, 0).close()


# The kernel and the machine.


@_way("kernel", "set up io_uring", "seccomp")
def uring(target: Target) -> None:
    os.close(system_call("io_uring_setup", 1, ctypes.create_string_buffer(120)))


@_way("kernel", "handle page faults (userfaultfd)", "seccomp", root=True)
def page_faults(target: Target) -> None:
    os.close(system_call("userfaultfd", os.O_CLOEXEC))


@_way("kernel", "load a program (bpf)", "seccomp", root=True)
def load_program(target: Target) -> None:
    # BPF_MAP_CREATE of an array: four numbers.
    os.close(system_call("bpf", 0, struct.pack("=IIII", 2, 4, 4, 1) + bytes(112), 128))


@_way("kernel", "count events of the processor (perf)", "seccomp", root=True)
def count_events(target: Target) -> None:
    attributes = struct.pack("=IIQQQQQ", 1, 128, 0, 0, 0, 0, 1).ljust(128, b"\0")
    os.close(system_call("perf_event_open", attributes, 0, -1, -1, 0))


@_way("kernel", "keep a key in the kernel", "seccomp")
def keep_key(target: Target) -> int:
    return system_call(
        "add_key", b"user", b"asyncpool", b"x", 1, -2
    )  # the process's own


@_way("kernel", "share memory beside all folders (shmget)", "seccomp")
def share_memory(target: Target) -> None:
    number = system_call("shmget", 0, 4096, 0o1600)
    system_call("shmctl", number, 0, 0)  # IPC_RMID


@_way("kernel", "leave messages beside all folders (mq_open)", "seccomp")
def message_queue(target: Target) -> None:
    name = f"asyncpool-{os.getpid()}".encode()
    os.close(system_call("mq_open", name, os.O_CREAT | os.O_RDWR, 0o600, 0))
    system_call("mq_unlink", name)


@_way("kernel", "keep memory without a file (memfd_create)", "seccomp")
def memory_file(target: Target) -> None:
    os.close(os.memfd_create("asyncpool"))


@_way("kernel", "enlarge the buffers of a pair of sockets", "seccomp")
def buffers(target: Target) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)


@_way("kernel", "take memory of the kernel by prctl (PR_FUTEX_HASH)", "seccomp")
def futex_hash(target: Target) -> None:
    try:
        _in_child(lambda: system_call("prctl", 78, 1, 16, 0, 0))
    except OSError as error:
        if error.errno == errno.EINVAL:  # an older kernel
            raise OSError(errno.ENOSYS, "there is none") from error
        raise


@_way("kernel", "run without random addresses (personality)", "seccomp")
def personality(target: Target) -> None:
    before = system_call("personality", 0xFFFFFFFF)
    system_call("personality", before | 0x0040000)
    system_call("personality", before)


@_way("kernel", "become root of a user namespace", "seccomp")
def user_namespace(target: Target) -> None:
    # In a process of its own: no worker could leave the namespace again.
    _in_child(lambda: system_call("unshare", 0x10000000))


@_way("kernel", "enter the namespaces of the service", "seccomp", root=True)
def enter_namespace(target: Target) -> None:
    with _closing(os.pidfd_open(target.service)) as fd:
        system_call("setns", fd, 0x04000000)  # CLONE_NEWUTS


@_way("kernel", "mount a file system", "seccomp, Landlock", root=True)
def mount(target: Target) -> None:
    with tempfile.TemporaryDirectory() as folder:
        system_call("mount", b"none", folder.encode(), b"tmpfs", 0, 0)
        system_call("umount2", folder.encode(), 0)


@_way("kernel", "list what is mounted (listmount)", "seccomp")
def list_mounts(target: Target) -> int:
    # struct mnt_id_req; the root of all that this process sees.
    return system_call(
        "listmount", struct.pack("=IIQQ", 24, 0, (1 << 64) - 1, 0), bytes(80), 10, 0
    )


@_way("kernel", "ask about what is mounted (statmount)", "seccomp")
def ask_mount(target: Target) -> None:
    found = bytes(8)
    system_call("listmount", struct.pack("=IIQQ", 24, 0, (1 << 64) - 1, 0), found, 1, 0)
    mount = struct.unpack("=Q", found)[0]
    system_call(
        "statmount", struct.pack("=IIQQ", 24, 0, mount, 1), bytes(4096), 4096, 0
    )


@_way("kernel", "change the root folder", "seccomp", root=True)
def change_root(target: Target) -> None:
    system_call("chroot", b"/")


@_way("kernel", "name the machine", "seccomp, no capabilities", root=True)
def name_machine(target: Target) -> None:
    name = os.uname().nodename.encode()
    system_call("sethostname", name, len(name))


@_way("kernel", "read the log of the kernel", "seccomp", root=True)
def kernel_log(target: Target) -> int:
    return system_call("syslog", 10, 0, 0)  # its size


@_way("kernel", "ask for dumps of memory", "RLIMIT_CORE")
def dumps(target: Target) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        raise PermissionError(errno.EPERM, "there are none")
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@_way("limits", "take more memory than memory= allows", "RLIMIT_AS")
def take_memory(target: Target) -> int:
    with mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        return len(memory)


@_way("limits", "raise the own limit of memory", "no capabilities")
def raise_limit(target: Target) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))


@_way("limits", "open a device that all may use", "Landlock")
def open_device(target: Target) -> None:
    os.close(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))


def _in_child(action: Callable[[], object]) -> None:
    """Do something in a process of its own; raise what it has raised."""
    out, into = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(out)
        os.close(into)
        action()  # the sandbox forks nothing, and must stop it here
        return
    if pid == 0:
        try:
            action()
        except OSError as error:
            os.write(into, struct.pack("=i", error.errno or 0))
        finally:
            os._exit(0)
    os.close(into)
    with _closing(out):
        told = os.read(out, 4)
    os.waitpid(pid, 0)
    if told:
        (number,) = struct.unpack("=i", told)
        raise OSError(number, os.strerror(number))
