"""A chain of three servers with the ZooKeeper that they stand in, and a redis-server that is a cluster of one.

ZooKeeper → `esker cluster init` → three servers → clients are told the address of the last, which is not the
head at first; `kill_head` ends the head as a machine that fails

Invariant: whatever was started is in `processes`, also where the rest could not be started: `stop` ends all of it.
"""

import os
import re
import signal
import socket
import subprocess
import time

SLOTS = 16384
START_SECONDS_MAX = 60
CALL_SECONDS_MAX = 20
# Where Debian's packages zookeeper and zookeeperd have it.
ZOOKEEPER_PATH = "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar:/usr/share/java/zookeeper-jute.jar"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def answer(port, *words):
    """What redis-cli is told at this port by the server itself, without following it elsewhere."""
    done = subprocess.run(["redis-cli", "-h", "127.0.0.1", "-p", str(port), *words], capture_output=True, text=True,
                          timeout=CALL_SECONDS_MAX, check=False)
    return (done.stdout + done.stderr).strip()


def head_of(port):
    """The port of the head as the server at `port` sees it, or nothing."""
    found = re.search(r"^\S+ [\d.]+:(\d+)@\S+ (?:myself,)?master ", answer(port, "CLUSTER", "NODES"), re.MULTILINE)
    return int(found[1]) if found else None


class Processes:
    """Programs that were started in a folder, each with a file of what it printed."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []

    def start(self, name, *command):
        # Settings of this shell must not reach the server.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ESKER")}
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen([str(word) for word in command], cwd=self.folder, env=environment, stdout=log,
                                       stderr=subprocess.STDOUT)
        self.processes.append(process)
        return process

    def wait_for(self, what, holds):
        """Waits until it holds; what all of them printed is told if it does not."""
        until = time.monotonic() + START_SECONDS_MAX
        while not holds():
            if time.monotonic() > until:
                raise RuntimeError(f"{self.printed()}\n{what}: not after {START_SECONDS_MAX} s; see above")
            time.sleep(0.1)

    def printed(self):
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-4000:]}" for log in logs)

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


class Chain(Processes):
    """Three servers; `resp` is the port of the last."""

    def __init__(self, program, folder):
        super().__init__(folder)
        self.program = program
        self.ports = {number: free_port() for number in (1, 2, 3)}
        self.resp = self.ports[3]
        try:
            self.begin()
        except BaseException:
            self.stop()
            raise

    def begin(self):
        zookeeper = free_port()
        (self.folder / "zookeeper").mkdir()
        (self.folder / "zoo.cfg").write_text(
            f"tickTime=500\ndataDir={self.folder / 'zookeeper'}\nclientPort={zookeeper}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n")
        self.start("zookeeper", "java", "-Xmx256m", "-cp", ZOOKEEPER_PATH,
                   "org.apache.zookeeper.server.quorum.QuorumPeerMain", self.folder / "zoo.cfg")
        self.cluster = f"zk://127.0.0.1:{zookeeper}/clients"
        self.wait_for("the cluster is made",
                      lambda: self.esker("init", "--servers", "1,2,3").returncode == 0)
        self.servers = {
            port: self.start(f"server-{number}", self.program, "serve", "--store", f"store-{number}?size=1g",
                             "--listen", f"127.0.0.1:{port}", "--cluster", self.cluster, "--server-id", number,
                             "--peer-listen", "127.0.0.1:0")
            for number, port in self.ports.items()}
        self.wait_for("three servers serve", lambda: self.esker("status").stdout.count(" serving ") == 3)
        # Each is asked: a server that has not heard of the head yet would send clients nowhere.
        self.wait_for("all of them know the head", lambda: {head_of(port) for port in self.servers} == {self.ports[1]})

    def esker(self, *words):
        return subprocess.run([self.program, "cluster", "--cluster", self.cluster, *words], cwd=self.folder,
                              capture_output=True, text=True, timeout=CALL_SECONDS_MAX, check=False)

    def head(self):
        return head_of(self.resp)

    def kill_head(self):
        process = self.servers[self.head()]
        process.send_signal(signal.SIGKILL)
        process.wait()


class RedisCluster(Processes):
    """A redis-server that has all slots."""

    def __init__(self, folder):
        super().__init__(folder)
        self.resp = free_port()
        self.start("redis", "redis-server", "--port", self.resp, "--bind", "127.0.0.1", "--dir", folder, "--save", "",
                   "--appendonly", "no", "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1",
                   "--cluster-port", free_port())
        try:
            self.wait_for("redis-server listens", lambda: answer(self.resp, "PING") == "PONG")
            answer(self.resp, "CLUSTER", "ADDSLOTSRANGE", "0", str(SLOTS - 1))
            self.wait_for("redis-server has all slots",
                          lambda: "cluster_state:ok" in answer(self.resp, "CLUSTER", "INFO"))
        except BaseException:
            self.stop()
            raise
