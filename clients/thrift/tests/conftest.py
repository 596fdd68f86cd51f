"""Servers of `esker serve --thrift`, one for each test that wants its own, and connections of Apache Thrift to them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from thrift.protocol import TBinaryProtocol, TCompactProtocol
from thrift.transport import TSocket, TTransport
from zdb import EskerKeys

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
ESKER = os.environ.get("ESKER_BIN") or str(TARGET / "debug" / "esker")

# Clients refuse strings and frames above 16,384,000 bytes if nothing is said.
LIMIT = {"string_length_limit": 64 << 20}
PROTOCOLS: dict[str, Callable] = {
    "binary": lambda transport: TBinaryProtocol.TBinaryProtocol(transport, **LIMIT),
    "binary in C": lambda transport: TBinaryProtocol.TBinaryProtocolAccelerated(transport, **LIMIT),
    "old binary": lambda transport: TBinaryProtocol.TBinaryProtocol(
        transport, strictRead=False, strictWrite=False, **LIMIT
    ),
    "compact": lambda transport: TCompactProtocol.TCompactProtocol(transport, **LIMIT),
    "compact in C": lambda transport: TCompactProtocol.TCompactProtocolAccelerated(transport, **LIMIT),
}
TRANSPORTS: dict[str, Callable] = {
    "unframed": TTransport.TBufferedTransport,
    "framed": lambda socket: TTransport.TFramedTransport(socket, max_frame_size=64 << 20),
}


class Server:
    """A process, and where it listens."""

    def __init__(self, folder: Path, *arguments: str):
        command = [ESKER, "serve", "--no-resp", "--store", "data?size=4g", "--log", "warn", *arguments]
        if not any(argument.startswith("--thrift-unix-socket") for argument in arguments):
            command += ["--thrift", "127.0.0.1:0"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ESKER_")}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        self.port, self.printed = 0, []
        for line in self.process.stdout:
            self.printed.append(line)
            if found := re.match(r"thrift +thrifts?://127\.0\.0\.1:(\d+) ", line):
                self.port = int(found[1])
            if line.startswith("thrift "):
                return
        raise AssertionError(f"the server ended: {self.printed}")

    @contextmanager
    def client(self, transport: str = "unframed", protocol: str = "binary", socket=None) -> Iterator[EskerKeys.Client]:
        socket = socket or TSocket.TSocket("127.0.0.1", self.port)
        opened = TRANSPORTS[transport](socket)
        opened.open()
        try:
            yield EskerKeys.Client(PROTOCOLS[protocol](opened))
        finally:
            opened.close()

    def end(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.stdout.close()
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of one store, one after the other."""
    started: list[Server] = []

    def one(*arguments: str) -> Server:
        started.append(Server(tmp_path, *arguments))
        return started[-1]

    yield one
    for server in started:
        server.end(signal.SIGKILL)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests whose keys are their own."""
    server = Server(tmp_path_factory.mktemp("shared"))
    yield server
    assert server.end() == 0
