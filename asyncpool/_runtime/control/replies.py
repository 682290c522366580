"""Write the replies of a control socket."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncpool._core.control.control_protocol import pack_reply


def write_reply(writer: asyncio.StreamWriter, reply: dict[str, Any]) -> None:
    """Write a reply, which goes out soon.

    Raises:
        ConnectionResetError: If the client is gone.
    """
    # A transport of asyncio drops what is written to it then, and one of uvloop raises a
    # RuntimeError, which could as well be a bug.
    if writer.is_closing():
        raise ConnectionResetError("the client is gone")
    writer.write(pack_reply(reply))
