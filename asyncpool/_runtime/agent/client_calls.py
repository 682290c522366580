"""What a client has told once, and its calls name by a number."""

from __future__ import annotations

import json

from asyncpool._core.pickling.functions import Function, FunctionCache
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.remote.remote_options import read_options
from asyncpool._core.remote_wire.remote_messages import Message
from asyncpool._core.remote_wire.trace_headers import unpack_headers
from asyncpool._runtime.agent.client_keeper import ClientKeeper
from asyncpool._runtime.agent.relay import JOB_TYPES, Call, Payload, Relay
from asyncpool.errors import ProtocolError


class ClientCalls:
    """Reads the calls of one client.

    The client knows by the same rules what is forgotten here.

    Args:
        relay: Knows the functions of all clients.
        keeper: Keeps the leases of the client's jobs.
    """

    def __init__(self, relay: Relay, keeper: ClientKeeper) -> None:
        self._relay = relay
        self._keeper = keeper
        self._functions = FunctionCache()
        self._options = FunctionCache()
        self._details: tuple[int, bytes] = (0, b"")
        self._trace = b""

    def on_function(self, message: Message) -> None:
        """Remember a function."""
        name, _, reference = message.payload.partition(b"\0")
        function = self._relay.functions.named(name.decode(), reference)
        self._functions.add(message.function, function)

    def on_options(self, message: Message) -> None:
        """Remember options.

        Raises:
            ProtocolError: If they are none.
            ValueError: If a value is out of range.
            TypeError: If a value has the wrong type.
        """
        told, codec = json.loads(message.payload), self._relay.functions
        options = read_options(told, self._keeper, codec)
        if options.via not in JOB_TYPES:
            raise ProtocolError(f"the client sent a job for {options.via!r}")
        self._options.add(message.options, options)

    def on_details(self, message: Message) -> None:
        """Remember the last heartbeat of an earlier attempt of the next job."""
        self._details = message.job, message.payload

    def on_trace(self, message: Message) -> None:
        """Remember the trace context of the next jobs."""
        self._trace = unpack_headers(message.payload)

    def read(self, message: Message, payload: Payload) -> Call:
        """Return the call that *message* names.

        Raises:
            LookupError: If its function or its options are not known.
        """
        function: Function = self._functions[message.function]
        options: JobOptions = self._options[message.options]
        details = b""
        if self._details[0] == message.job:
            details, self._details = self._details[1], (0, b"")
        return Call(function, options, message, details, payload, self._trace)
