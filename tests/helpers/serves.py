"""What workers of clusters serve in tests; nothing heavy is imported here."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import os
import resource
import signal
import socket
import sys
import threading
from typing import Any

from asyncpool.cluster import Connection, Worker
from tests.helpers import jobs


class Talker:
    """Serves conversations of lines, each of which is answered by another one."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.kept: list[Any] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        acceptor = asyncio.create_task(self.accept())
        await asyncio.wait({acceptor, self.end}, return_when="FIRST_COMPLETED")
        if self.end.done():
            acceptor.cancel()
            await asyncio.wait({acceptor})
            return self.end.result()
        while self.tasks:
            await asyncio.wait(self.tasks)
        return None

    async def accept(self) -> None:
        async for connection in self.worker.connections():
            task = asyncio.create_task(self.converse(connection))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def converse(self, connection: Connection) -> None:
        await self.answer(*await asyncio.open_connection(sock=connection.detach()))

    async def answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while line := await reader.readline():
                name, _, rest = line.decode().rstrip("\n").partition(" ")
                answer = await getattr(self, name)(rest)
                writer.write(f"{answer}\n".encode())
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    # What can be said.

    async def who(self, _: str) -> str:
        return f"{self.worker.id} {self.worker.generation} {os.getpid()}"

    async def echo(self, rest: str) -> str:
        return rest

    async def wait(self, _: str) -> str:
        await self.worker.wait_draining()
        return "draining"

    async def die(self, name: str) -> str:
        os.kill(os.getpid(), getattr(signal, name))
        return "still here"

    async def fail(self, text: str) -> str:
        self.end.set_exception(ArithmeticError(text))
        return "failing"

    async def finish(self, _: str) -> str:
        self.end.set_result(None)
        return "finishing"

    async def retire(self, reason: str) -> str:
        self.worker.retire(reason)
        return "retiring"

    async def replace(self, reason: str) -> str:
        self.worker.request_replacement(reason)
        return "serving on"

    async def descriptors(self, _: str) -> str:
        return str(len(os.listdir("/proc/self/fd")))

    async def hog(self, _: str) -> str:
        """Open all descriptors that there are."""
        try:
            while True:
                self.kept.append(open(os.devnull))  # noqa: ASYNC230, SIM115
        except OSError:
            return "full"

    async def release(self, _: str) -> str:
        for file in self.kept:
            file.close()
        self.kept.clear()
        return "empty"

    async def leak(self, mebibytes: str) -> str:
        """Keep so much memory as long as the worker lives."""
        self.kept.append(b"x" * (int(mebibytes) << 20))
        return "leaked"

    async def born(self, module: str) -> str:
        """Return the pid of the process that has imported a module."""
        return str(sys.modules[module].PID)

    async def hold_gil(self, path: str) -> str:
        """Be as a C function that never returns, and lets no other thread run."""
        os.mkdir(path)
        libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)  # which no signal breaks off
        return "went on"

    async def freeze(self, path: str) -> str:
        os.mkdir(path)
        os.kill(os.getpid(), signal.SIGSTOP)
        return "went on"

    async def stop(self, _: str) -> str:
        os.kill(os.getpid(), signal.SIGSTOP)
        return "continued"

    async def block(self, gate: str) -> str:
        """Hold up the loop as long as a thread is held at the gate, and log meanwhile."""
        thread = threading.Thread(target=jobs.wait_at, args=(gate, "blocked"))
        thread.start()
        while thread.is_alive():
            thread.join(0.05)
            logging.getLogger("tests").warning("the loop is blocked")
        return "released"

    async def send(self, count: str) -> str:
        for n in range(int(count)):
            await self.worker.send((self.worker.id, n))
        return "sent"


async def talk(worker: Worker) -> None:
    worker.ready()
    await Talker(worker).run()


async def talk_by_itself(worker: Worker) -> None:
    """Accept with servers of asyncio, which close their sockets."""
    talker = Talker(worker)

    async def converse(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        worker.opened()
        try:
            await talker.answer(reader, writer)
        finally:
            worker.closed()

    servers = [
        await asyncio.start_server(converse, sock=sock)
        for sock in worker.listening_sockets
    ]
    worker.ready()
    await worker.wait_draining()
    for server in servers:
        server.close()


async def talk_behind(path: str, worker: Worker) -> None:
    """Say at the gate that it is there, and be ready when it is let in."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(f"{worker.id}.{worker.generation} {os.getpid()}\n".encode())
    try:
        if not await reader.read(2):
            return
    finally:
        writer.close()
    await talk(worker)


def behind_if_there(gate: str, flag: str) -> Any:
    """Return what does that as soon as a file is there."""
    return functools.partial(_behind_if_there, gate, flag)


async def _behind_if_there(gate: str, flag: str, worker: Worker) -> None:
    await (talk_behind(gate, worker) if os.path.exists(flag) else talk(worker))


async def keep(worker: Worker) -> None:
    """Keep all connections until others may have them, or until the end, and say so then."""
    worker.ready()
    for connection in [it async for it in worker.connections()]:
        if not worker.give_back(connection.socket):
            connection.socket.send(b"kept\n")
            connection.close()


async def answer_messages(worker: Worker) -> None:
    worker.ready()
    async for message in worker.messages():
        await worker.send(("back", message))


async def answer_behind(gate: str, worker: Worker) -> None:
    """Do that when it is let in at the gate."""
    reader, writer = await asyncio.open_unix_connection(gate)
    writer.write(f"{worker.id} {os.getpid()}\n".encode())
    await reader.read(2)
    writer.close()
    await answer_messages(worker)


async def send_100(worker: Worker) -> None:
    worker.ready()
    for n in range(100):
        await worker.send(n)
    await worker.wait_draining()


async def send_and_die(worker: Worker) -> None:
    """Send ten messages, and die when all of them have left."""
    worker.ready()
    for n in range(10):
        await worker.send(n)
    os.kill(os.getpid(), signal.SIGKILL)


class Unreadable:
    """Can be pickled, but not be read again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


async def send_what_cannot_be_read(worker: Worker) -> None:
    worker.ready()
    await worker.send(Unreadable())
    await worker.send("fine")
    await worker.wait_draining()


async def take_no_messages(worker: Worker) -> None:
    worker.ready()
    await worker.wait_draining()


async def tell_about_sockets(worker: Worker) -> None:
    """Say of each socket what it is, and send it back."""
    worker.ready()
    async for sock in worker.incoming_sockets():
        about = (worker.id, sock.family.name, sock.type.name, sock.get_inheritable())
        await worker.send(about)
        await worker.send_socket(sock, sock.value)
        sock.close()


async def tell_about_files(worker: Worker) -> None:
    """Say of each file what it is, and send it back."""
    worker.ready()
    async for file in worker.incoming_files():
        with file:
            inheritable = os.get_inheritable(file.fileno())
            await worker.send((worker.id, file.mode, inheritable, file.value))
            await worker.send_file(file, ["back", file.value])


async def copy_files(worker: Worker) -> None:
    """Copy what is in one file to another one."""
    worker.ready()
    files = {}
    async for file in worker.incoming_files():
        files[file.value] = file
        if len(files) == 2:
            with files["from"] as source, files["to"] as target:
                target.write(source.readall())
            await worker.send("copied")


async def count_descriptors(worker: Worker) -> None:
    """Say how many descriptors are open whenever there is a message."""
    worker.ready()
    async for _ in worker.messages():
        await worker.send(len(os.listdir("/proc/self/fd")))


async def send_odd_values(worker: Worker) -> None:
    """Send a value of each kind that cannot be read, and one that can."""
    worker.ready()
    with socket.socket() as sock:
        await worker.send_socket(sock, Unreadable())
        await worker.send_socket(sock, "fine")
    with open(os.devnull, "rb") as file:  # noqa: ASYNC230
        await worker.send_file(file, Unreadable())
        await worker.send_file(file.fileno(), "fine")
    await worker.wait_draining()


async def send_files_without_end(worker: Worker) -> None:
    """Send files until one is refused, and say how many were taken."""
    worker.ready()
    taken = 0
    with open(os.devnull, "rb") as file:  # noqa: ASYNC230
        try:
            while True:
                await worker.send_file(file)
                taken += 1
        except OSError as error:
            await worker.send((taken, str(error)))
    await worker.wait_draining()


async def take_sockets(worker: Worker) -> None:
    worker.ready()
    async for sock in worker.incoming_sockets():
        sock.close()
        await worker.send(worker.id)


async def hog_then_take_sockets(full: tuple[int, ...], worker: Worker) -> None:
    """Have no descriptor left in these slots."""
    kept = []
    if worker.id in full:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        try:
            while True:
                kept.append(open(os.devnull))  # noqa: ASYNC230, SIM115
        except OSError:
            pass
    await take_sockets(worker)
    del kept


async def send_sockets_without_end(worker: Worker) -> None:
    """Send sockets until one is refused, and say how many were taken."""
    worker.ready()
    taken = 0
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            while True:
                await worker.send_socket(theirs)
                taken += 1
        except OSError as error:
            await worker.send((taken, str(error)))
    await worker.wait_draining()


async def not_yet(worker: Worker) -> None:
    await worker.wait_draining()


async def fail_at_once(worker: Worker) -> None:
    worker.ready()
    raise ArithmeticError("at once")


async def fail_at_last(worker: Worker) -> None:
    """Raise when it drains, whatever conversations go on."""
    worker.ready()
    await Talker(worker).accept()
    raise ArithmeticError("at last")


async def fail_before(worker: Worker) -> None:
    raise ArithmeticError("before it was ready")


async def never_end(worker: Worker) -> None:
    worker.ready()
    await asyncio.Event().wait()
