"""If one process of distributed training dies, exit the others within seconds.

Otherwise they would wait in a collective operation for a process that no longer exists. Every process holds a
connection to the first one, which the operating system closes when a process exits for any reason, on any machine. No
polling or heartbeat is needed.
"""

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from lightning.fabric import Fabric

_CONNECT_TIMEOUT = 60.0  # seconds
_MAX_MESSAGE = 500  # characters of an error message that are sent
# Seconds after an error that may have its cause in another process. The connection to that process is closed by then,
# and its reader exits this one.
_READ_TIMEOUT = 2.0


class Stopped(Exception):
    """Raised in all processes to stop after a checkpoint because of a signal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@contextlib.contextmanager
def watch(fabric: Fabric) -> Iterator[None]:
    """If any process fails during the block, exit all others."""
    if fabric.world_size == 1:
        yield
        return
    peers = _listen(fabric) if fabric.is_global_zero else _connect(fabric)
    try:
        yield
    except Stopped:
        peers.close({"done": True})
        raise
    except BaseException as error:
        if isinstance(error, RuntimeError):  # as of a collective operation, if another process has exited
            time.sleep(_READ_TIMEOUT)
        peers.close({"failed": _message(error)})
        raise
    peers.close({"done": True})


class _Peers:
    """The connections of this process by rank, each read by its own thread."""

    def __init__(self, is_first: bool) -> None:
        self.is_first = is_first
        self._connections: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        self._closed = False

    def add(self, rank: int, connection: socket.socket) -> None:
        self._connections[rank] = connection
        threading.Thread(target=self._read, args=(rank, connection), daemon=True).start()

    def close(self, last_message: dict[str, Any]) -> None:
        """Send the outcome of this process to the others, and ignore their messages from now on."""
        with self._lock:
            self._closed = True
            for connection in self._connections.values():
                _send(connection, last_message)

    def _read(self, rank: int, connection: socket.socket) -> None:
        message = _receive(connection)
        if message is not None and "done" in message:
            return
        with self._lock:
            if self._closed:
                return
            reason = message["failed"] if message else "exited without a message; see its log for the reason"
            if self.is_first:
                for other, peer in self._connections.items():
                    if other != rank:
                        _send(peer, {"failed": reason})
            if self.is_first or message is None:  # otherwise the first process reports it
                print(f"error: process {rank} {reason}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(1)  # not sys.exit: the main thread may be waiting in a collective operation


def _listen(fabric: Fabric) -> _Peers:
    """Accept a connection from every other process. A token rejects connections from other programs."""
    peers, token = _Peers(is_first=True), secrets.token_hex(16)
    with socket.create_server(("", 0)) as server:
        server.settimeout(_CONNECT_TIMEOUT)
        fabric.broadcast((server.getsockname()[1], token))
        missing = set(range(1, fabric.world_size))
        while missing:
            connection, _ = server.accept()
            connection.settimeout(_CONNECT_TIMEOUT)
            hello = _receive(connection) or {}
            if hello.get("token") != token or hello.get("rank") not in missing:
                connection.close()
                continue
            connection.settimeout(None)
            missing.remove(hello["rank"])
            peers.add(hello["rank"], connection)
    return peers


def _connect(fabric: Fabric) -> _Peers:
    placeholder: Any = None
    port, token = fabric.broadcast(placeholder)
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    connection = socket.create_connection((address, port), timeout=_CONNECT_TIMEOUT)
    connection.settimeout(None)
    _send(connection, {"token": token, "rank": fabric.global_rank})
    peers = _Peers(is_first=False)
    peers.add(0, connection)
    return peers


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the connection may be closed
        connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """Receive the next message; None if the connection was closed."""
    line = b""
    try:
        while not line.endswith(b"\n"):
            part = connection.recv(1)
            if not part:
                return None
            line += part
        message = json.loads(line)
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None


def _message(error: BaseException) -> str:
    text = " ".join(str(error).split())[:_MAX_MESSAGE]
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    return f"failed: {text}" if isinstance(error, ValueError) else f"failed: {type(error).__name__}: {text}"
