"""Keys on several chains by Apache Thrift: each call goes to a server of the chain that keeps its keys.

registry in ZooKeeper, watched -> marks -> key -> the first mark behind it -> a server that has it -> call

    from zdb_ring import Ring
    with Ring("127.0.0.1:2181", "/data/zdb") as ring:       # esker serve --thrift-registry /data/zdb
        ring.put("7", "Ada")
        print(ring.get("7"), ring.get("8"))                  # Ada None

Any server answers for all keys, so one that has heard of a change late costs a hop and no more, and where no server of
a chain is reached the others are asked. Needs kazoo and thrift from PyPI, and what `thrift --gen py zdb.thrift` makes.

Invariants:
1. A write that was sent and not answered is not sent again: `Unknown`. What only reads is asked of another server.
2. What others write into the registry is passed over, and told by `strange`.
"""

from __future__ import annotations

import binascii
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kazoo.client import KazooClient
from thrift.protocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TException
from thrift.transport import TSocket, TTransport
from zdb import EskerKeys
from zdb.ttypes import DataType

# Slots of the keys, and how many int keys that follow each other are of one.
SLOTS, RANGE_KEYS = 16_384, 65_536
# Of the instances that a ring calls.
_PROTOCOL = "thriftbinary"
# As the paper prints it there is a blank before the mark.
_INSTANCE = re.compile(r"([^_ :/]{1,64})[_ :](\d+):([^\s/]+):(\d{1,5})")
_ANSWER_SECONDS = 15.0
_BATCH_MAX = 4_096


class Unknown(Exception):
    """It is not known whether a write was done: no server has answered it."""


class Unreachable(Exception):
    """No server was reached, and nothing was done."""


@dataclass(frozen=True, order=True)
class Instance:
    """A server that has the keys below its mark."""

    mark: int
    protocol: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Instance | None:
        found = _INSTANCE.fullmatch(text)
        if not found or not 0 < int(found[4]) < 65_536:
            return None
        return cls(int(found[2]), found[1], found[3].strip("[]"), int(found[4]))


def slot_of(key: bytes) -> int:
    """The slot of a byte key, as Redis Cluster has it."""
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1) if begin >= 0 else -1
    tag = key[begin + 1 : end] if end > begin + 1 else key
    return binascii.crc_hqx(tag, 0) % SLOTS


def _connect(host: str, port: int):
    """A connection by the binary protocol, in frames, and a client of it."""
    socket = TSocket.TSocket(host, port)
    socket.setTimeout(_ANSWER_SECONDS * 1e3)
    transport = TTransport.TFramedTransport(socket, max_frame_size=64 << 20)
    transport.open()
    protocol = TBinaryProtocol.TBinaryProtocol(transport, string_length_limit=64 << 20)
    return EskerKeys.Client(protocol), transport


class Ring:
    """The keys of one namespace. Threads may share it: calls to one server wait for each other."""

    def __init__(
        self,
        zookeeper: str | KazooClient,
        node: str = "/data/zdb",
        *,
        ints: bool = True,
        connect: Callable = _connect,
        patience: float = 10.0,
    ):
        """Of the servers that register below `node` of a ZooKeeper (`HOST:PORT,...`). `ints`: keys are numbers.

        `connect` makes a client and its transport for a host and a port (by TLS, say). For `patience` seconds a call
        looks for a server that it can reach.
        """
        self._ints, self._connect, self._patience = ints, connect, patience
        self._own = isinstance(zookeeper, str)
        self._zookeeper = KazooClient(zookeeper) if isinstance(zookeeper, str) else zookeeper
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._marks: list[int] = []
        self._servers: dict[int, list[tuple[str, int]]] = {}
        self._open: dict[tuple[str, int], tuple] = {}
        self._alone: dict[tuple[str, int], threading.Lock] = {}
        self.strange: list[str] = []
        if self._own:
            self._zookeeper.start()
        self._zookeeper.ensure_path(node)
        self._watch = self._zookeeper.ChildrenWatch(node, self._seen)

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends all connections, and the session if the ring has made it."""
        with self._lock:
            opened, self._open = list(self._open.values()), {}
        for _, transport in opened:
            transport.close()
        if self._own:
            self._zookeeper.stop()
            self._zookeeper.close()

    def _seen(self, names: list[str]) -> None:
        servers: dict[int, list[tuple[str, int]]] = {}
        strange = []
        for name in sorted(names):
            instance = Instance.parse(name)
            if instance is None or instance.protocol != _PROTOCOL:
                strange.append(name)
            else:
                servers.setdefault(instance.mark, []).append((instance.host, instance.port))
        with self._lock:
            self._servers, self._marks, self.strange = servers, sorted(servers), strange
        self._changed.set()

    def servers_of(self, key: str) -> list[tuple[str, int]]:
        """Where the key is, as it was registered last; empty while none is."""
        return next(iter(self._from(key)), [])

    def _from(self, key: str) -> list[list[tuple[str, int]]]:
        """The servers of each mark, from the first behind the key on."""
        place = self._place(key)
        with self._lock:
            at = bisect_right(self._marks, place) % max(len(self._marks), 1)
            return [self._servers[mark] for mark in self._marks[at:] + self._marks[:at]]

    def _place(self, key: str) -> int:
        if not self._ints:
            return slot_of(key.encode())
        if not re.fullmatch(r"0|[1-9]\d{0,19}", key):
            raise ValueError(f"key {key!r}: expected a decimal number without leading zeros")
        return int(key) % (SLOTS * RANGE_KEYS)

    # Calls.

    def get(self, key: str) -> str | None:
        """The value; None where there is no such key."""

        def ask(client):
            try:
                return client.get(key)
            except TApplicationException as error:
                if error.type == TApplicationException.MISSING_RESULT:
                    return None
                raise

        return self._call(key, True, ask)

    def has(self, key: str) -> bool:
        return self._call(key, True, lambda client: client.has(key))

    def put(self, key: str, value: str) -> None:
        self._call(key, False, lambda client: client.put(key, value))

    def remove(self, key: str) -> bool:
        """Whether there was such a key."""
        return self._call(key, False, lambda client: client.remove(key)) == 0

    def add(self, key: str, value: str) -> bool:
        return self._call(key, False, lambda client: client.add(key, value))

    def update(self, key: str, value: str) -> bool:
        return self._call(key, False, lambda client: client.update(key, value))

    def compare_and_set(self, key: str, expected: str | None, value: str) -> bool:
        return self._call(key, False, lambda client: client.compareAndSet(key, expected, value))

    def multi_get(self, keys: Iterable[str]) -> dict[str, str]:
        """The pairs that are there."""
        found = {}
        for part in self._parts(keys):
            pairs = self._call(part[0], True, lambda client, part=part: client.multiGet(part))
            found.update((pair.key, pair.value) for pair in pairs)
        return found

    def multi_put(self, pairs: dict[str, str]) -> None:
        """All or none of the pairs of one chain; where an error comes, those of other chains may be written."""
        for part in self._parts(pairs):
            data = [DataType(key, pairs[key]) for key in part]
            self._call(part[0], False, lambda client, data=data: client.multiPut(data))

    def remove_many(self, keys: Iterable[str]) -> int:
        """How many there were; of one chain all or none."""
        parts = self._parts(dict.fromkeys(keys))
        return sum(self._call(part[0], False, lambda client, part=part: client.removeMany(part)) for part in parts)

    def _parts(self, keys: Iterable[str]) -> list[list[str]]:
        """The keys by the servers that have them, as many as one call may have."""
        parts: dict[tuple, list[str]] = {}
        for key in keys:
            parts.setdefault(tuple(self.servers_of(key)), []).append(key)
        return [part[at : at + _BATCH_MAX] for part in parts.values() for at in range(0, len(part), _BATCH_MAX)]

    def _call(self, key: str, reads: bool, ask: Callable):
        until, last, turn = time.monotonic() + self._patience, "none is registered", 0
        while True:
            self._changed.clear()
            for server in self._order(key, turn):
                with self._alone_with(server):
                    try:
                        client, _ = self._opened(server)
                    except (TTransport.TTransportException, OSError) as error:
                        last = f"{server[0]}:{server[1]}: {error}"
                        continue
                    try:
                        return ask(client)
                    except TApplicationException:
                        raise
                    except (TException, OSError) as error:
                        self._forget(server)
                        last = f"{server[0]}:{server[1]}: {error}"
                        if not reads:
                            raise Unknown(last) from error
            turn += 1
            if time.monotonic() >= until:
                raise Unreachable(f"for {self._patience} s no server of key {key!r} was reached; the last: {last}")
            # Another may register meanwhile.
            self._changed.wait(0.2)

    def _order(self, key: str, turn: int) -> list[tuple[str, int]]:
        """All servers, those that have the key first."""
        parts = self._from(key)
        own = parts[0] if parts else []
        at = turn % len(own) if own else 0
        return list(dict.fromkeys(own[at:] + own[:at] + [server for part in parts[1:] for server in part]))

    def _alone_with(self, server: tuple[str, int]) -> threading.Lock:
        with self._lock:
            return self._alone.setdefault(server, threading.Lock())

    def _opened(self, server: tuple[str, int]):
        opened = self._open.get(server)
        if opened is None:
            opened = self._connect(*server)
            with self._lock:
                self._open[server] = opened
        return opened

    def _forget(self, server: tuple[str, int]) -> None:
        with self._lock:
            opened = self._open.pop(server, None)
        if opened:
            opened[1].close()
