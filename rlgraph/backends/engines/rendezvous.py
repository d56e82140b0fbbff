"""The store in which processes find each other: torch's own answers whoever connects, this one those who know a secret.

Each connection begins with a proof from both ends that they have the token: an HMAC of random numbers that both have
chosen. What follows is neither secret nor sealed: who can change packets on their way is not kept out.
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
"""Seconds in which the other end shows that it knows the token."""
_LARGEST = 1 << 26
"""Bytes of a message: what processes tell each other of themselves is small."""

Message = list[bytes]


class Listener:
    """Holds the keys of all who come with the token, for as long as it is open."""

    def __init__(self, listening: socket.socket, token: bytes) -> None:
        self._listening, self._token = listening, token
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._open = True
        threading.Thread(target=self._accept, name="rendezvous", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        """Nobody comes in any more; those who are in stay."""
        self._open = False
        # A thread that waits in `accept` is not woken up by `close` alone.
        with suppress(OSError):  # Some systems know no such thing of a listener.
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while self._open:
            try:
                came, _ = self._listening.accept()
            except OSError:
                return
            # One that says nothing keeps nobody else out.
            threading.Thread(target=self._serve, args=(came,), name="rendezvous", daemon=True).start()

    def _serve(self, came: socket.socket) -> None:
        with came:
            try:
                _prove(came, self._token, first=True)
                while True:
                    name, *given = _received(came)
                    _send(came, getattr(self, f"_do_{name.decode()}")(*given))
            except (OSError, ValueError):
                return  # A stranger, or one that has left.

    # What may be asked

    def _do_set(self, key: bytes, value: bytes) -> Message:
        return self._change(lambda values: values.update({key.decode(): value}))

    def _do_get(self, key: bytes) -> Message:
        with self._changed:
            value = self._values.get(key.decode())
        return [] if value is None else [value]

    def _do_add(self, key: bytes, more: bytes) -> Message:
        def add(values: dict[str, bytes]) -> Message:
            values[key.decode()] = found = b"%d" % (int(values.get(key.decode(), b"0")) + int(more))
            return [found]

        return self._change(add)

    def _do_append(self, key: bytes, value: bytes) -> Message:
        return self._change(lambda values: values.update({key.decode(): values.get(key.decode(), b"") + value}))

    def _do_swap(self, key: bytes, expected: bytes, wanted: bytes) -> Message:
        """As torch has it: a key that is not there is made where nothing is expected."""

        def swap(values: dict[str, bytes]) -> Message:
            there = values.get(key.decode())
            if there == expected or (there is None and not expected):
                values[key.decode()] = wanted
            return [values.get(key.decode(), expected)]

        return self._change(swap)

    def _do_delete(self, key: bytes) -> Message:
        return self._change(lambda values: [b"1"] if values.pop(key.decode(), None) is not None else [])

    def _do_wait(self, milliseconds: bytes, *keys: bytes) -> Message:
        """Something, once all keys are there; nothing, where that takes longer."""
        wanted = {key.decode() for key in keys}
        with self._changed:
            there = self._changed.wait_for(lambda: wanted <= self._values.keys(), int(milliseconds) / 1000)
        return [b"1"] if there else []

    def _change(self, change: Callable[[dict[str, bytes]], Message | None]) -> Message:
        with self._changed:
            found = change(self._values)
            self._changed.notify_all()
        return found or []


class SharedStore(Store):
    """What a listener has, as torch's groups use it. Raises DistNetworkError for one that is gone, or does not know the
    token, DistStoreError for keys that do not come in time."""

    def __init__(self, host: str, port: int, token: bytes, seconds: float) -> None:
        super().__init__()
        self.set_timeout(timedelta(seconds=seconds))
        self._place, self._token, self._seconds = (host, port), token, seconds
        self._idle: list[socket.socket] = []
        """Connections over which nobody asks now: who waits for a key keeps no other thread from asking."""
        self._clones: list[SharedStore] = []
        """Torch, which asked for them, keeps no Python object."""
        self._idle.append(self._connected())

    def __del__(self) -> None:
        for each in getattr(self, "_idle", ()):
            each.close()

    def clone(self) -> SharedStore:
        self._clones.append(SharedStore(*self._place, self._token, self._seconds))
        return self._clones[-1]

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key.encode(), _bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        found = self._ask("get", key.encode())
        if not found:
            raise dist.DistStoreError(f"`{key}` was taken away")
        return found[0]

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", key.encode(), b"%d" % value)[0])

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", key.encode(), _bytes(value))

    def compare_set(self, key: str, expected: str | bytes, wanted: str | bytes) -> bytes:
        return self._ask("swap", key.encode(), _bytes(expected), _bytes(wanted))[0]

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key.encode()))

    deleteKey = delete_key  # Torch's own name of it, by which a `PrefixStore` asks.

    def check(self, keys: Sequence[str]) -> bool:
        return self._there(keys, 0.0)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        if not self._there(keys, seconds):
            raise dist.DistStoreError(f"nobody has set {', '.join(keys)} within {seconds:g} s")

    def _there(self, keys: Sequence[str], seconds: float) -> bool:
        return bool(self._ask("wait", b"%d" % math.ceil(seconds * 1000), *(key.encode() for key in keys)))

    def _ask(self, what: str, *given: bytes) -> Message:
        try:
            end = self._idle.pop()
        except IndexError:
            end = self._connected()
        try:
            _send(end, [what.encode(), *given])
            found = _received(end)
        except OSError as error:
            end.close()
            host, port = self._place
            raise dist.DistNetworkError(f"{host}:{port}, where processes meet, is gone: {error}") from None
        except BaseException:
            # Nobody will read the answer.
            end.close()
            raise
        self._idle.append(end)
        return found

    def _connected(self) -> socket.socket:
        host, port = self._place
        try:
            end = socket.create_connection(self._place, timeout=_PATIENCE)
            try:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _prove(end, self._token, first=False)
            except BaseException:
                end.close()
                raise
        except (OSError, ValueError) as error:
            raise dist.DistNetworkError(f"{host}:{port} cannot be reached: {error}") from None
        return end


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


# Messages


def _prove(end: socket.socket, token: bytes, *, first: bool) -> None:
    """Both ends show that they have the token, and neither one says it. Raises ValueError or OSError for one that has
    not. first: this end listens."""
    end.settimeout(_PATIENCE)
    own = secrets.token_bytes(_NONCE)
    end.sendall(own)
    other = _exactly(end, _NONCE)
    chosen = own + other if first else other + own
    sides = (b"listens" + chosen, b"comes" + chosen)
    mine, theirs = (hmac.digest(token, side, "sha256") for side in (sides if first else sides[::-1]))
    if not first:
        end.sendall(mine)
    if not hmac.compare_digest(_exactly(end, _NONCE), theirs):
        raise ValueError("the other end has another secret")
    if first:
        end.sendall(mine)
    end.settimeout(None)


def _send(end: socket.socket, parts: Message) -> None:
    sizes = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    end.sendall(sizes + b"".join(parts))


def _received(end: socket.socket) -> Message:
    [count] = struct.unpack("<I", _exactly(end, 4))
    sizes = struct.unpack(f"<{count}I", _exactly(end, 4 * count))
    return [_exactly(end, size) for size in sizes]


def _exactly(end: socket.socket, size: int) -> bytes:
    if size > _LARGEST:
        raise ValueError("a message is too large")
    found = bytearray()
    while len(found) < size:
        more = end.recv(size - len(found))
        if not more:
            raise ConnectionError("the other end has left")
        found += more
    return bytes(found)
