"""An application that tells who asks, and how long its body was."""

import asyncio
from typing import Any


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer a request; ``/slow`` takes a second."""
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
        return
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body")
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    text = f"{scope['client'][0]} by {scope['scheme']}, {size} bytes\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})
