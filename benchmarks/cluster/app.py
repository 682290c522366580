"""The application that all servers serve: it answers with the process that it is in.

It does as good as nothing, so that what is measured is the server.  The folder that the
environment names decides the rest, and is looked at once, when a worker imports this:
``start`` holds the seconds that the import takes, ``broken`` makes it fail, and in
``begun`` every request that is begun gets a line, with its worker and its path.
"""

import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from benchmarks.cluster.folder import BEGUN, BROKEN, START, VARIABLE

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


def load(folder: Path) -> int | None:
    """Do what *folder* says; return the descriptor of its journal, if it has one."""
    if (folder / START).exists():
        time.sleep(float((folder / START).read_text()))
    if (folder / BROKEN).exists():
        raise RuntimeError("this version is broken")
    if not (folder / BEGUN).exists():
        return None
    # Lines of several processes do not mix: each is one write to the end of the file.
    return os.open(folder / BEGUN, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


journal = load(Path(os.environ[VARIABLE]))


async def app(scope: Event, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await live(receive, send)
        return
    worker = b"%d" % os.getpid()
    if journal is not None:
        os.write(journal, b"%s %s\n" % (worker, scope["path"].encode()))
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", b"%d" % len(worker)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": worker})


async def live(receive: Receive, send: Send) -> None:
    """Have nothing to start or to stop, and say so."""
    while (await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
