"""A real server for the tests: the `esker` that `ESKER_BIN` names, else that of a debug build."""

from __future__ import annotations

import os
import pathlib
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Optional

import esker
import pytest

STARTS_WITHIN_SECONDS = 30.0


def binary() -> str:
    """Where the server's program is."""
    if "ESKER_BIN" in os.environ:
        return os.environ["ESKER_BIN"]
    root = pathlib.Path(__file__).resolve().parents[3]
    return str(pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target")) / "debug" / "esker")


class Server:
    """A server of its own, on a free port."""

    def __init__(self, *arguments: str, store: str = "memory:", config: str = "") -> None:
        program = [binary(), "--config", config] if config else [binary()]
        command = [*program, "serve", "--store", store, "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said: list[str] = []
        told: queue.Queue[Optional[str]] = queue.Queue()
        threading.Thread(target=self._listen, args=(told,), daemon=True).start()
        try:
            address = told.get(timeout=STARTS_WITHIN_SECONDS)
        except queue.Empty:
            address = None
        if address is None:
            self.kill()
            raise AssertionError(f"{command} did not say where it serves: {''.join(self.said)}")
        self.address = address

    def _listen(self, told: queue.Queue[Optional[str]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if line.startswith("grpc ") and "unix" not in line:
                told.put(line.split()[1])
        told.put(None)

    @property
    def port(self) -> int:
        """The port of its address."""
        return int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests that leave it as it is."""
    one = Server()
    yield one
    one.stop()


@pytest.fixture
def connection(server: Server) -> Iterator[esker.Connection]:
    """A connection to it."""
    with esker.connect(server.address) as connected:
        yield connected


@pytest.fixture
def logs(connection: esker.Connection) -> esker.log.Logs:
    """Its logs."""
    return esker.log.Logs(connection)


@pytest.fixture
def log(logs: esker.log.Logs, request: pytest.FixtureRequest) -> esker.log.Log:
    """A log of the test's own."""
    return logs.create(request.node.nodeid.rpartition("::")[2][:200])


@pytest.fixture
def shop(connection: esker.Connection) -> esker.map.Map:
    """Its map, with namespace `shop`."""
    tables = esker.map.Map(connection)
    tables.create_namespace("shop", if_not_exists=True)
    return tables


@pytest.fixture
def orders(shop: esker.map.Map, request: pytest.FixtureRequest) -> esker.map.Table:
    """A table of the test's own: customer and falling at, item with an index, price."""
    kinds = esker.map.Type
    columns = {"customer": kinds.INT, "at": kinds.BIGINT, "item": kinds.TEXT, "price": kinds.DOUBLE}
    schema = esker.map.Schema(columns, ["customer"], [esker.map.desc("at")], ["item"])
    return shop.create_table("shop", request.node.nodeid.rpartition("::")[2][:100], schema)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts servers that end with the test."""
    started: list[Server] = []

    def start(*arguments: str, **how: str) -> Server:
        started.append(Server(*arguments, **how))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop()
