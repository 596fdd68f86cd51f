import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/** A ZooKeeper, and servers of chains a and b that register in it. {@link Server#killAll} ends them. */
final class Chains {
    static final String NODE = "/data/zdb";
    private static final int SECONDS_MAX = 60;
    /** Settings of the machine's own are not for the servers of tests. */
    private static final String ESKER = "ESKER_";

    /** Where each server serves by Thrift, chain a and chain b. */
    final List<int[]> thrift = new ArrayList<>();
    private final Path folder;
    private final int zookeeper;
    private final List<Process> servers = new ArrayList<>();
    private Process keeper;

    /** Something that comes to hold. */
    interface Condition {
        boolean holds() throws Exception;
    }

    /** A ZooKeeper alone. */
    Chains(Path folder) throws Exception {
        this.folder = folder;
        zookeeper = freePort();
        startZooKeeper();
    }

    /** And servers 1 to `count`, all of both chains; the first server of each is the chain's head. */
    Chains(Path folder, String namespace, String[] spread, int count) throws Exception {
        this(folder);
        Files.writeString(folder.resolve("esker.toml"), "[cluster]\nlocation = '" + location() + "'\nlease = '2s'\n");
        List<String> command = new ArrayList<>(List.of("cluster", "spread"));
        command.addAll(Arrays.asList(spread));
        // One that was not answered in time may have been made.
        soon("the chains are made", () -> {
            Said said = esker(command.toArray(new String[0]));
            return said.code() == 0 || said.text().contains("already");
        });
        for (int server = 1; server <= count; server++) {
            int[] ports = {freePort(), freePort()};
            thrift.add(ports);
            String further = "chain=b,store=b" + server + "?size=64m&segment=1m,listen=127.0.0.1:" + freePort()
                + ",thrift=127.0.0.1:" + ports[1];
            servers.add(start(System.getProperty("esker.binary"), "serve", "--server-id", "" + server,
                "--config", "esker.toml", "--cluster", location(), "--log", "warn",
                "--store", "a" + server + "?size=64m&segment=1m", "--listen", "127.0.0.1:" + freePort(), "--chain", "a",
                "--peer-listen", "127.0.0.1:" + freePort(), "--thrift", "127.0.0.1:" + ports[0],
                "--thrift-namespace", namespace, "--thrift-registry", NODE, "--replica", further));
        }
    }

    static int freePort() throws IOException {
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return free.getLocalPort();
        }
    }

    /** Fails where this does not hold in time. */
    static void soon(String what, Condition condition) throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX);
        boolean holds = condition.holds();
        while (!holds && System.nanoTime() < until) {
            Thread.sleep(20);
            holds = condition.holds();
        }
        Check.holds(holds, what);
    }

    /** What a command has printed, and how it ended. */
    record Said(int code, String text) {}

    Said esker(String... words) throws Exception {
        List<String> command = new ArrayList<>(List.of(System.getProperty("esker.binary")));
        command.addAll(Arrays.asList(words));
        command.addAll(List.of("--config", "esker.toml"));
        ProcessBuilder builder = new ProcessBuilder(command).directory(folder.toFile()).redirectErrorStream(true);
        builder.environment().keySet().removeIf(name -> name.startsWith(ESKER));
        Process process = builder.start();
        Server.started(process);
        String text = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        return new Said(process.waitFor(), text);
    }

    private Process start(String... command) throws IOException {
        ProcessBuilder builder = new ProcessBuilder(command).directory(folder.toFile()).redirectErrorStream(true);
        builder.environment().keySet().removeIf(variable -> variable.startsWith(ESKER));
        // What a failing test shows.
        builder.redirectOutput(ProcessBuilder.Redirect.appendTo(folder.resolve(Server.LOG).toFile()));
        Process process = builder.start();
        Server.started(process);
        return process;
    }

    /** Starts a ZooKeeper, on what the one before it has left. */
    void startZooKeeper() throws IOException {
        Path file = folder.resolve("zoo.cfg");
        Files.writeString(file, "tickTime=500\ndataDir=" + folder.resolve("zookeeper") + "\nclientPort=" + zookeeper
            + "\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n");
        keeper = start("java", "-Xmx256m", "-cp", System.getProperty("java.class.path"),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", file.toString());
    }

    /** Kills the ZooKeeper, which loses all that it held. */
    void loseZooKeeper() throws Exception {
        keeper.destroyForcibly().waitFor();
        Main.remove(folder.resolve("zookeeper"));
    }

    /** Kills a server with SIGKILL, 1 the first. */
    void kill(int server) throws InterruptedException {
        servers.get(server - 1).destroyForcibly().waitFor();
    }

    /** Where ZooKeeper is. */
    String zooKeeper() {
        return "127.0.0.1:" + zookeeper;
    }

    private String location() {
        return "zk://" + zooKeeper() + "/test";
    }

    /** Has a node stand below the service's, as another program would. */
    void register(String name) throws Exception {
        change(client -> {
            for (String node : List.of("/data", NODE, NODE + "/" + name)) {
                try {
                    client.create(node, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
                } catch (KeeperException.NodeExistsException error) {
                    continue;
                }
            }
        });
    }

    void unregister(String name) throws Exception {
        change(client -> client.delete(NODE + "/" + name, -1));
    }

    private interface Change {
        void of(ZooKeeper client) throws KeeperException, InterruptedException;
    }

    private void change(Change change) throws Exception {
        ZooKeeper client = new ZooKeeper(zooKeeper(), SECONDS_MAX * 1_000, event -> { });
        try {
            soon("ZooKeeper answers", () -> {
                try {
                    change.of(client);
                    return true;
                } catch (KeeperException.ConnectionLossException error) {
                    return false;
                }
            });
        } finally {
            client.close();
        }
    }
}
