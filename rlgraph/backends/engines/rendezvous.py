"""The store in which processes find each other: torch's own answers whoever connects, this one only those who know a
secret.

Each connection begins with a proof from both ends that they have the token: an HMAC of random numbers that both have
chosen. What follows is neither secret nor sealed: whoever can change packets on their way is not kept out.
"""

from __future__ import annotations

import hmac
import math
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

_NONCE = 32
"""Bytes of a random number, and of a proof."""
_PATIENCE = 10.0
"""Seconds in which the other end has to show that it knows the token."""
_LARGEST = 1 << 26
"""The most bytes of a message: what processes tell each other of themselves is small."""

Message = list[bytes]


class StoreServer:
    """Holds the keys of all who connect with the token, for as long as it is open."""

    def __init__(self, listening: socket.socket, token: bytes) -> None:
        self._listening, self._token = listening, token
        self._values: dict[str, bytes] = {}
        self._condition = threading.Condition()
        self._open = True
        threading.Thread(target=self._accept, name="rendezvous", daemon=True).start()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        """Stop accepting connections; those that are open stay."""
        self._open = False
        # A thread that waits in `accept` is not woken up by `close` alone.
        with suppress(OSError):  # Some systems cannot shut a listening socket down.
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while self._open:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            # A connection that says nothing keeps nobody else out.
            threading.Thread(target=self._serve, args=(connection,), name="rendezvous", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                _prove(connection, self._token, first=True)
                while True:
                    name, *arguments = _receive(connection)
                    _send(connection, getattr(self, f"_do_{name.decode()}")(*arguments))
            except (OSError, ValueError):
                return  # The other end does not know the token, or has left.

    # Requests

    def _do_set(self, key: bytes, value: bytes) -> Message:
        return self._change(lambda values: values.update({key.decode(): value}))

    def _do_get(self, key: bytes) -> Message:
        with self._condition:
            value = self._values.get(key.decode())
        return [] if value is None else [value]

    def _do_add(self, key: bytes, increment: bytes) -> Message:
        def add(values: dict[str, bytes]) -> Message:
            values[key.decode()] = total = b"%d" % (int(values.get(key.decode(), b"0")) + int(increment))
            return [total]

        return self._change(add)

    def _do_append(self, key: bytes, value: bytes) -> Message:
        return self._change(lambda values: values.update({key.decode(): values.get(key.decode(), b"") + value}))

    def _do_swap(self, key: bytes, expected: bytes, wanted: bytes) -> Message:
        """Swap as torch does: a missing key is made where nothing is expected."""

        def swap(values: dict[str, bytes]) -> Message:
            present = values.get(key.decode())
            if present == expected or (present is None and not expected):
                values[key.decode()] = wanted
            return [values.get(key.decode(), expected)]

        return self._change(swap)

    def _do_delete(self, key: bytes) -> Message:
        return self._change(lambda values: [b"1"] if values.pop(key.decode(), None) is not None else [])

    def _do_wait(self, milliseconds: bytes, *keys: bytes) -> Message:
        """Return something once all keys are set; nothing, where that takes longer."""
        wanted = {key.decode() for key in keys}
        with self._condition:
            complete = self._condition.wait_for(lambda: wanted <= self._values.keys(), int(milliseconds) / 1000)
        return [b"1"] if complete else []

    def _change(self, change: Callable[[dict[str, bytes]], Message | None]) -> Message:
        with self._condition:
            reply = change(self._values)
            self._condition.notify_all()
        return reply or []


class StoreClient(Store):
    """A listener's keys, as torch's groups use them. Raises DistNetworkError if the listener is gone, or does not know
    the token, and DistStoreError for keys that do not come in time."""

    def __init__(self, host: str, port: int, token: bytes, seconds: float) -> None:
        super().__init__()
        self.set_timeout(timedelta(seconds=seconds))
        self._address, self._token, self._seconds = (host, port), token, seconds
        self._idle: list[socket.socket] = []
        """Connections that are not in use now: a thread that waits for a key keeps no other thread from asking."""
        self._clones: list[StoreClient] = []
        """Keeps clones alive: torch, which asked for them, keeps no Python object."""
        self._idle.append(self._connect())

    def __del__(self) -> None:
        for connection in getattr(self, "_idle", ()):
            connection.close()

    def clone(self) -> StoreClient:
        """Connect to the same listener once more."""
        self._clones.append(StoreClient(*self._address, self._token, self._seconds))
        return self._clones[-1]

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        self._ask("set", key.encode(), _bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        self.wait([key])
        values = self._ask("get", key.encode())
        if not values:
            raise dist.DistStoreError(f"`{key}` was taken away")
        return values[0]

    def add(self, key: str, value: int) -> int:
        """Add to a counter and return its new value."""
        return int(self._ask("add", key.encode(), b"%d" % value)[0])

    def append(self, key: str, value: str | bytes) -> None:
        """Append to a key's value."""
        self._ask("append", key.encode(), _bytes(value))

    def compare_set(self, key: str, expected: str | bytes, wanted: str | bytes) -> bytes:
        """Set a key to `wanted` if it is as expected, and return its value."""
        return self._ask("swap", key.encode(), _bytes(expected), _bytes(wanted))[0]

    def delete_key(self, key: str) -> bool:
        """Delete a key, and return whether it was set."""
        return bool(self._ask("delete", key.encode()))

    deleteKey = delete_key  # Torch's own name of it, which a `PrefixStore` calls.

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return self._all_set(keys, 0.0)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        if not self._all_set(keys, seconds):
            raise dist.DistStoreError(f"nobody has set {', '.join(keys)} within {seconds:g} s")

    def _all_set(self, keys: Sequence[str], seconds: float) -> bool:
        return bool(self._ask("wait", b"%d" % math.ceil(seconds * 1000), *(key.encode() for key in keys)))

    def _ask(self, request: str, *arguments: bytes) -> Message:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            _send(connection, [request.encode(), *arguments])
            reply = _receive(connection)
        except OSError as error:
            connection.close()
            host, port = self._address
            raise dist.DistNetworkError(f"{host}:{port}, where processes meet, is gone: {error}") from None
        except BaseException:
            # Nobody will read the answer.
            connection.close()
            raise
        self._idle.append(connection)
        return reply

    def _connect(self) -> socket.socket:
        host, port = self._address
        try:
            connection = socket.create_connection(self._address, timeout=_PATIENCE)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _prove(connection, self._token, first=False)
            except BaseException:
                connection.close()
                raise
        except (OSError, ValueError) as error:
            raise dist.DistNetworkError(f"{host}:{port} cannot be reached: {error}") from None
        return connection


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


# Messages


def _prove(connection: socket.socket, token: bytes, *, first: bool) -> None:
    """Show the other end that this one has the token, and have it show the same; neither end sends it. Raises
    ValueError or OSError where the other end has not got it. first: this end listens."""
    connection.settimeout(_PATIENCE)
    nonce = secrets.token_bytes(_NONCE)
    connection.sendall(nonce)
    their_nonce = _receive_exactly(connection, _NONCE)
    chosen = nonce + their_nonce if first else their_nonce + nonce
    sides = (b"listens" + chosen, b"comes" + chosen)
    proof, their_proof = (hmac.digest(token, side, "sha256") for side in (sides if first else sides[::-1]))
    if not first:
        connection.sendall(proof)
    if not hmac.compare_digest(_receive_exactly(connection, _NONCE), their_proof):
        raise ValueError("the other end has another secret")
    if first:
        connection.sendall(proof)
    connection.settimeout(None)


def _send(connection: socket.socket, parts: Message) -> None:
    sizes = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    connection.sendall(sizes + b"".join(parts))


def _receive(connection: socket.socket) -> Message:
    [count] = struct.unpack("<I", _receive_exactly(connection, 4))
    sizes = struct.unpack(f"<{count}I", _receive_exactly(connection, 4 * count))
    return [_receive_exactly(connection, size) for size in sizes]


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    if size > _LARGEST:
        raise ValueError("a message is too large")
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionError("the other end has left")
        received += chunk
    return bytes(received)
