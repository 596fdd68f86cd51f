"""Three servers of three chains with the ZooKeeper that they stand in, and a redis-server that is a cluster of one.

ZooKeeper → `esker cluster spread` → three servers, each heads one of the chains that share the keys → clients are
told one address, of a replica; `kill_head` ends the head of its chain as a machine that fails

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


def heads_of(port):
    """The ports of all heads as the server at `port` sees them."""
    nodes = answer(port, "CLUSTER", "NODES")
    return {int(found) for found in re.findall(r"^\S+ [\d.]+:(\d+)@\S+ (?:myself,)?master ", nodes, re.MULTILINE)}


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


class Chains(Processes):
    """Three servers, each in three chains; `resp` is the port of the last of the first chain."""

    # By chain, the servers in order: the first heads it.
    LINES = {"a": (1, 2, 3), "b": (2, 3, 1), "c": (3, 1, 2)}

    def __init__(self, program, folder):
        super().__init__(folder)
        self.program = program
        self.ports = {chain: {number: free_port() for number in line} for chain, line in self.LINES.items()}
        self.resp = self.ports["a"][3]
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
        spread = [f"{chain}={','.join(str(number) for number in line)}" for chain, line in self.LINES.items()]
        self.wait_for("the cluster is made", lambda: self.esker("spread", *spread).returncode == 0)
        # By the port of each chain's clients.
        self.servers = {}
        for number in self.LINES["a"]:
            first, *others = self.LINES
            further = [f"--replica=chain={chain},store={chain}-{number}?size=1g,"
                       f"listen=127.0.0.1:{self.ports[chain][number]}" for chain in others]
            process = self.start(f"server-{number}", self.program, "serve", "--store", f"{first}-{number}?size=1g",
                                 "--chain", first, "--listen", f"127.0.0.1:{self.ports[first][number]}", *further,
                                 "--cluster", self.cluster, "--server-id", number, "--peer-listen", "127.0.0.1:0")
            self.servers |= {self.ports[chain][number]: process for chain in self.LINES}
        serving = lambda chain: self.esker("--chain", chain, "status").stdout.count(" serving ")
        self.wait_for("three servers serve", lambda: all(serving(chain) == 3 for chain in self.LINES))
        # Each is asked: a server that has not heard of the heads yet would send clients nowhere.
        heads = {self.ports[chain][line[0]] for chain, line in self.LINES.items()}
        self.wait_for("all of them know the heads", lambda: all(heads_of(port) == heads for port in self.servers))

    def esker(self, *words):
        return subprocess.run([self.program, "cluster", "--cluster", self.cluster, *words], cwd=self.folder,
                              capture_output=True, text=True, timeout=CALL_SECONDS_MAX, check=False)

    def head(self):
        """The port of the head of the first chain, or nothing."""
        return next(iter(heads_of(self.resp) & set(self.ports["a"].values())), None)

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
