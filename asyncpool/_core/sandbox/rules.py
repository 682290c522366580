"""Which system calls a sandbox refuses, and why: a table for each reason."""

from __future__ import annotations

from asyncpool._core.sandbox.filters import (
    ENOSYS,
    ENOTSUP,
    Rule,
    containing,
    never,
    only,
    without,
)

# How other processes are read, changed or held.  Landlock forbids most of it too.
OTHER_PROCESSES = (
    "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp "
    "pidfd_getfd migrate_pages move_pages"
)

# Parts of the kernel that no job needs, and in which most of its holes were found.
KERNEL = (
    "add_key request_key keyctl io_uring_setup io_uring_enter io_uring_register userfaultfd "
    "bpf perf_event_open init_module finit_module delete_module kexec_load "
    "kexec_file_load modify_ldt iopl ioperm uselib ustat lookup_dcookie nfsservctl "
    "syslog acct quotactl quotactl_fd memfd_create memfd_secret"
)

# Who works with a file elsewhere, which a watch of a folder tells also where nothing may be read.
WATCHES = "inotify_add_watch fanotify_init fanotify_mark"

# Attributes of a file, which its path is enough to read.  Programs such as ls expect this error
# from file systems that keep none.
ATTRIBUTES = "getxattr lgetxattr getxattrat listxattr llistxattr listxattrat"

# How the machine, its clock and its tree of files are changed.
MACHINE = (
    "mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig "
    "fsmount fspick mount_setattr name_to_handle_at open_by_handle_at unshare setns reboot "
    "swapon swapoff settimeofday clock_settime clock_adjtime adjtimex sethostname "
    "setdomainname vhangup"
)

# Memory, messages and semaphores that all processes of a user share, beside any folder.
SHARED = (
    "shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semtimedop semctl mq_open "
    "mq_unlink"
)

# Landlock leaves these to whoever owns a file: the service, or with `user` also each sibling.
OWNER = (
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat "
    "utimensat setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr "
    "removexattrat file_setattr"
)

# These take the number of a process, 0 for the caller; the kernel asks only for the same user.
OF_ONE_PROCESS = "sched_setaffinity sched_setscheduler sched_setparam sched_setattr"

LISTEN = "listen accept accept4"

# Before its third version Landlock did not know of this.
TRUNCATE = "truncate"

# By it the launcher knows whose descendant a process is, see _worker/launcher/reaper.py.
_RLIMIT_LOCKS = 10

_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_QUERY = 0xFFFFFFFF  # of personality()

# Keys pressed on a terminal, as it were.
_OF_TERMINALS = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD

# These change a file, and a descriptor for reading is enough for its owner.
_OF_OWNERS = (
    0x40086602,  # FS_IOC_SETFLAGS, and of programs of 32 bits
    0x40046602,
    0x40087602,  # FS_IOC_SETVERSION, likewise
    0x40047602,
    0x40086604,  # EXT4_IOC_SETVERSION
    0x401C5820,  # FS_IOC_FSSETXATTR
    0x40806685,  # FS_IOC_ENABLE_VERITY
    0x800C6613,  # FS_IOC_SET_ENCRYPTION_POLICY
    0x40047211,  # FAT_IOCTL_SET_ATTRIBUTES
)

# A lease stops whoever else opens the file, for 45 s; a descriptor for reading is enough.
_F_SETLEASE, _F_NOTIFY = 1024, 1026

# New namespaces: mounts, cgroups, host names, IPC, users, processes, network.
_NEW_NAMESPACES = 0x7E020000
_CLONE_THREAD = 0x00010000

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET = 1, 5
_TYPE = 0xF  # of a socket, without its flags
_TCP = 6
_MSG_FASTOPEN = 0x20000000


def base_rules() -> list[Rule]:
    """Return what every sandbox refuses."""
    words = (
        f"{OTHER_PROCESSES} {KERNEL} {MACHINE} {WATCHES} {SHARED} {TRUNCATE}".split()
    )
    return [
        *map(Rule, words),
        *(Rule(call, (), ENOTSUP) for call in ATTRIBUTES.split()),
        # Of this process, not of another one of the same user.
        *(Rule(call, (only(0, 0),)) for call in OF_ONE_PROCESS.split()),
        Rule("prlimit64", (only(0, 0), never(1, _RLIMIT_LOCKS))),
        Rule("setrlimit", (never(0, _RLIMIT_LOCKS),)),
        Rule("setpriority", (only(0, _PRIO_PROCESS), only(1, 0))),
        Rule("ioprio_set", (only(0, _IOPRIO_WHO_PROCESS), only(1, 0))),
        Rule("ioctl", (never(1, *_OF_TERMINALS, *_OF_OWNERS),)),
        Rule("fcntl", (never(1, _F_SETLEASE, _F_NOTIFY),)),
        Rule("personality", (only(0, 0, _QUERY),)),
        # Its flags are in memory, where the filter does not look: libraries then use clone().
        Rule("clone3", (), ENOSYS),
    ]


def owner_rules() -> list[Rule]:
    """Return what keeps the owner of a file from changing its mode, owner or times."""
    return [*map(Rule, OWNER.split())]


def process_rules(*, forks: bool) -> list[Rule]:
    """Return what is refused of new processes; threads are always allowed."""
    if forks:
        # A program without a name in any folder that is allowed.
        return [Rule("clone", (without(0, _NEW_NAMESPACES),)), Rule("execveat")]
    thread = containing(0, _CLONE_THREAD)
    return [
        Rule("clone", (without(0, _NEW_NAMESPACES), thread)),
        *map(Rule, ("fork", "vfork", "execve", "execveat")),
    ]


def network_rules(*, reach: str) -> list[Rule]:
    """Return what is refused of sockets.

    Args:
        reach: ``"all"``, ``"ports"`` for TCP only, whose ports Landlock checks, or ``"none"``.
    """
    # A pair is connected, and of these types it stays so.  asyncio needs one for itself.
    pair = Rule(
        "socketpair",
        (only(0, _AF_UNIX), only(1, _SOCK_STREAM, _SOCK_SEQPACKET, mask=_TYPE)),
    )
    if reach == "all":
        return [Rule("socket", (only(0, _AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK),))]
    if reach == "ports":
        # Neither UDP nor Unix sockets, and no other protocol over TCP, such as MPTCP: Landlock
        # checks none of them.  Nor does it see a connection that a message opens.
        return [
            pair,
            # To listen without a bind() takes a free port, at all addresses.
            *map(Rule, LISTEN.split()),
            Rule(
                "socket",
                (
                    only(0, _AF_INET, _AF_INET6),
                    only(1, _SOCK_STREAM, mask=_TYPE),
                    only(2, 0, _TCP),
                ),
            ),
            Rule("sendto", (without(3, _MSG_FASTOPEN),)),
            Rule("sendmsg", (without(2, _MSG_FASTOPEN),)),
            Rule("sendmmsg", (without(3, _MSG_FASTOPEN),)),
        ]
    return [
        pair,
        *map(Rule, f"socket connect bind {LISTEN}".split()),
    ]
