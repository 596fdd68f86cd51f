"""Keys on two chains, found by the registry in a real ZooKeeper, while ranges go from chain to chain."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ESKER
from thrift.Thrift import TApplicationException
from zdb_ring import RANGE_KEYS, SLOTS, Instance, Ring, Unreachable, slot_of

# Where Debian's package libzookeeper-java has them.
JARS = "/usr/share/java/zookeeper.jar:/usr/share/java/zookeeper-jute.jar"
SECONDS_MAX = 60


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Chains:
    """A ZooKeeper and one server, which heads two chains."""

    def __init__(self, folder: Path, kind: str):
        self.folder, self.processes, self.zookeeper, self.said = folder, [], free_port(), ""
        try:
            self.begin(folder, kind)
        except BaseException:
            self.stop()
            raise

    def begin(self, folder: Path, kind: str) -> None:
        (folder / "zoo.cfg").write_text(
            f"tickTime=500\ndataDir={folder / 'zookeeper'}\nclientPort={self.zookeeper}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        )
        self.start("zookeeper", "java", "-Xmx256m", "-cp", JARS, "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                   str(folder / "zoo.cfg"))
        self.location = f"zk://127.0.0.1:{self.zookeeper}/test"
        self.thrift = {chain: free_port() for chain in "ab"}
        self.wait("the chains are made", self.is_spread)
        self.start("server", ESKER, "serve", "--store", "a?size=256m", "--listen", f"127.0.0.1:{free_port()}",
                   "--cluster", self.location, "--server-id", "1", "--peer-listen", "127.0.0.1:0", "--chain", "a",
                   "--thrift", f"127.0.0.1:{self.thrift['a']}", "--thrift-namespace", f"users:{kind}",
                   "--thrift-registry", "/data/zdb", "--replica",
                   f"chain=b,store=b?size=256m,listen=127.0.0.1:{free_port()},thrift=127.0.0.1:{self.thrift['b']}")

    def start(self, name: str, *command: str) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ESKER")}
        with (self.folder / f"{name}.log").open("w") as log:
            self.processes.append(
                subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )

    def is_spread(self) -> bool:
        done = self.esker("cluster", "spread", "a=1", "b=1")
        self.said = done.stderr
        # One that was not answered in time may have been made.
        return done.returncode == 0 or "already" in done.stderr

    def esker(self, command: str, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([ESKER, command, "--cluster", self.location, *words], cwd=self.folder,
                              capture_output=True, text=True, timeout=SECONDS_MAX, check=False)

    def wait(self, what: str, holds) -> None:
        until = time.monotonic() + SECONDS_MAX
        while not holds():
            logs = "\n".join(log.read_text()[-2000:] for log in self.folder.glob("*.log"))
            assert time.monotonic() < until, f"not so: {what}\n{self.said}{logs}"
            time.sleep(0.1)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def chains(tmp_path: Path, request) -> Iterator[Chains]:
    made = Chains(tmp_path, getattr(request, "param", "int"))
    try:
        yield made
    finally:
        made.stop()


def test_each_call_goes_to_the_chain_that_keeps_its_keys(chains: Chains):
    with Ring(f"127.0.0.1:{chains.zookeeper}") as ring:
        far = str(SLOTS // 2 * RANGE_KEYS)
        at = {chain: [("127.0.0.1", port)] for chain, port in chains.thrift.items()}
        chains.wait("both have registered", lambda: (ring.servers_of("7"), ring.servers_of(far)) == (at["a"], at["b"]))
        # Behind the last mark the ring begins anew.
        assert ring.servers_of(str(SLOTS * RANGE_KEYS + 7)) == at["a"]
        ring.put("7", "Ada")
        ring.multi_put({"8": "eight", far: "far"})
        assert (ring.get("7"), ring.get("9"), ring.get(far), ring.has("8")) == ("Ada", None, "far", True)
        assert ring.multi_get(["9", far, "7"]) == {far: "far", "7": "Ada"}
        assert (ring.add("7", "x"), ring.update("7", "y"), ring.compare_and_set("7", "y", "z")) == (False, True, True)
        assert (ring.compare_and_set("10", None, "ten"), ring.remove("10"), ring.remove("10")) == (True, True, False)
        with pytest.raises(ValueError, match="'x7'"):
            ring.get("x7")

        # What others have written there. The last looks like a server that has key 7, and is none.
        strange = ["http_5:h:80", "nonsense", "thriftbinary_x:h:1"]
        alike = f"thriftbinary_{RANGE_KEYS}:127.0.0.1:{free_port()}"
        for name in [*strange, alike]:
            ring._zookeeper.create(f"/data/zdb/{name}", b"")
        chains.wait("they are seen", lambda: ring.servers_of("7") not in ([], at["a"]) and ring.strange == strange)
        assert (ring.get("7"), ring.multi_get(["7", far])) == ("z", {"7": "z", far: "far"})
        ring._zookeeper.delete(f"/data/zdb/{alike}")

        moved = chains.esker("ring", "move", "0-9", "--to", "b")
        assert moved.returncode == 0, moved.stderr
        assert (ring.get("7"), ring.get("8")) == ("z", "eight")
        chains.wait("the registry follows", lambda: ring.servers_of("7") == at["b"])
        assert ring.servers_of(str(10 * RANGE_KEYS)) == at["a"]
        assert ring.remove_many(["7", far, "11"]) == 2
        told = chains.esker("ring", "instances", "/data/zdb")
        assert f"{10 * RANGE_KEYS:<20}thriftbinary        127.0.0.1:{chains.thrift['b']}" in told.stdout, told.stdout

        chains.processes[-1].kill()
        ring._patience = 1.0
        with pytest.raises(Unreachable, match="'7'"):
            ring.get("7")


@pytest.mark.parametrize("chains", ["bytes"], indirect=True)
def test_byte_keys_go_by_their_hash_and_each_server_answers_for_all(chains: Chains):
    with Ring(f"127.0.0.1:{chains.zookeeper}", ints=False) as ring:
        # foo is of slot 12182, bar of 5061.
        chains.wait("both have registered", lambda: ring.servers_of("foo") not in ([], ring.servers_of("bar")))
        ring.multi_put({"foo": "1", "bar": "2"})
        assert ring.multi_get(["foo", "bar"]) == {"foo": "1", "bar": "2"}
        too_long = "x" * 5_000
        with pytest.raises(TApplicationException, match="KEY_BYTES_MAX"):
            ring.get(too_long)
        for key in ("foo", "bar"):
            host, port = ring.servers_of(key)[0]
            client, transport = ring._connect(host, port)
            assert (client.get("foo"), client.get("bar"), client.count()) == ("1", "2", 2)
            page = client.iterate(b"", 10)
            assert [pair.key for pair in page.data] == ["bar", "foo"]
            transport.close()


def test_what_is_no_instance_is_none():
    for text in ("thriftbinary_7:h:9901", "thriftbinary 7:h:9901", "thriftbinary:7:h:9901"):
        assert Instance.parse(text) == Instance(7, "thriftbinary", "h", 9901)
    for text in ("", "x", "thriftbinary_x:h:9901", "thriftbinary_7:h:0", "thriftbinary_7:h:70000", "thriftbinary_7::1"):
        assert Instance.parse(text) is None, text
    # As CLUSTER KEYSLOT of redis-server 7.0 tells them.
    for key, slot in ((b"123456789", 12_739), (b"foo", 12_182), (b"foo{hash_tag}", 2_515), (b"", 0)):
        assert slot_of(key) == slot
    assert slot_of(b"foo{}{bar}") != slot_of(b"bar")
