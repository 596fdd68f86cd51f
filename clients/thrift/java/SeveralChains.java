import io.github.eskerstorage.ring.Connector;
import io.github.eskerstorage.ring.Instance;
import io.github.eskerstorage.ring.Instance.Address;
import io.github.eskerstorage.ring.Keys;
import io.github.eskerstorage.ring.OutcomeUnknownException;
import io.github.eskerstorage.ring.Ring;
import io.github.eskerstorage.ring.UnreachableException;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.thrift.TApplicationException;
import org.apache.thrift.TException;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.transport.TTransport;
import vn.zdb.DataType;
import vn.zdb.EskerKeys;

/** The client that knows the ring, with a real ZooKeeper and real servers. */
final class SeveralChains {
    private static final int WRITERS = 3;
    private static final List<String> NONSENSE =
        List.of("nonsense", "thriftbinary_x:h:1", "thriftbinary_7:h:70000", "http_1:h:80");

    private SeveralChains() {}

    private static String key(long range) {
        return String.valueOf(range * Keys.RANGE_KEYS);
    }

    private static List<Address> at(int... ports) {
        List<Address> servers = new ArrayList<>();
        for (int port : ports) {
            servers.add(new Address("127.0.0.1", port));
        }
        return servers;
    }

    /** What a server answers without the ring. */
    private static <T> T asked(int port, Asked<T> ask) throws TException {
        try (TTransport transport = Connector.PLAIN.open("127.0.0.1", port)) {
            return ask.of(new EskerKeys.Client(new TBinaryProtocol(transport)));
        }
    }

    private interface Asked<T> {
        T of(EskerKeys.Client client) throws TException;
    }

    static void eachCallGoesToTheChainThatKeepsItsKeys(Path folder) throws Exception {
        Chains chains = new Chains(folder, "users:int", new String[] {"a=1", "b=1"}, 1);
        int[] thrift = chains.thrift.get(0);
        String far = key(Keys.SLOTS / 2);
        try (Ring ring = new Ring(chains.zooKeeper(), Chains.NODE, Keys.INTS)) {
            Chains.soon("both have registered", () ->
                ring.serversOf("7").equals(at(thrift[0])) && ring.serversOf(far).equals(at(thrift[1])));
            // Behind the last mark the ring begins anew.
            Check.equal(at(thrift[0]), ring.serversOf("18446744072635809799"));
            ring.put("7", "Ada");
            ring.multiPut(Map.of("8", "eight", far, "far"));
            Check.equal(List.of("Ada", "far"), List.of(ring.get("7"), ring.get(far)));
            Check.equal(null, ring.get("9"));
            Check.holds(ring.has("8") && !ring.has("9"), "there is an 8 and no 9");
            // In the order in which they were asked for, each as often, as one server answers.
            List<String> asked = List.of(far, "9", "7", far, "8", "7");
            List<DataType> found = ring.multiGet(asked);
            Check.equal(List.of(far, "7", far, "8", "7"), found.stream().map(DataType::getKey).toList());
            Check.equal(asked(thrift[0], client -> client.multiGet(asked)), found);
            Check.equal(List.of(), ring.multiGet(List.of()));
            Check.holds(!ring.add("7", "x") && ring.update("7", "y") && !ring.update("9", "y"), "7 is there, 9 is not");
            Check.holds(ring.compareAndSet("7", "y", "z") && !ring.compareAndSet("7", "y", "q"), "7 was y");
            Check.holds(ring.compareAndSet("10", null, "ten") && ring.remove("10") && !ring.remove("10"), "10 was not");
            for (String key : List.of("x7", "", "07", "-1", "18446744073709551616")) {
                Exception refused = Check.thrown(() -> ring.get(key), List.of(IllegalArgumentException.class));
                Check.holds(refused.getMessage().contains("\"" + key + "\""), "the key is named: " + refused);
            }
            Check.thrown(() -> put(ring, "7", null), List.of(NullPointerException.class));

            Check.equal(List.of(thrift[0]), opened(chains, of -> of.multiGet(List.of("7", "8"))));
            Check.equal(List.of(thrift[1], thrift[0]), opened(chains, of -> of.multiGet(List.of(far, "7", far))));

            // More than one call may have, at both.
            Map<String, String> many = new LinkedHashMap<>();
            for (int number = 0; number < 9_000; number++) {
                long begin = number % 2 == 0 ? 1_000 : (long) Keys.RANGE_KEYS * Keys.SLOTS / 2 + 1_000;
                many.put(String.valueOf(begin + number), "v" + number);
            }
            ring.multiPut(many);
            List<String> keys = new ArrayList<>(many.keySet());
            List<DataType> pairs = ring.multiGet(keys);
            Check.equal(keys, pairs.stream().map(DataType::getKey).toList());
            Check.equal(new ArrayList<>(many.values()), pairs.stream().map(DataType::getValue).toList());
            keys.addAll(keys.subList(0, 10));
            keys.add("11");
            Check.equal(9_000L, ring.removeMany(keys));

            Chains.Said moved = chains.esker("ring", "move", "0-9", "--to", "b");
            Check.holds(moved.code() == 0, "the ranges go: " + moved.text());
            Check.equal(List.of("z", "eight"), List.of(ring.get("7"), ring.get("8")));
            Chains.soon("the ring follows", () -> ring.serversOf("7").equals(at(thrift[1])));
            Check.equal(at(thrift[0]), ring.serversOf(key(10)));

            Duration little = Duration.ofMillis(300);
            try (Ring hasty = new Ring(chains.zooKeeper(), Chains.NODE, Keys.INTS, little, Connector.PLAIN)) {
                Chains.soon("it has read the registry", () -> !hasty.serversOf("7").isEmpty());
                chains.kill(1);
                for (Check.Call call : List.<Check.Call>of(() -> hasty.get("7"), () -> put(hasty, "7", "n"))) {
                    Exception error = Check.thrown(call, List.of(UnreachableException.class));
                    Check.holds(error.getMessage().contains("\"7\""), "the key is named: " + error);
                }
            }
        }
    }

    /** The ports that a ring connects to for this, in this order. */
    private static List<Integer> opened(Chains chains, ByRing ask) throws Exception {
        List<Integer> ports = new ArrayList<>();
        Connector noting = (host, port) -> {
            ports.add(port);
            return Connector.PLAIN.open(host, port);
        };
        try (Ring ring = new Ring(chains.zooKeeper(), Chains.NODE, Keys.INTS, Ring.PATIENCE, noting)) {
            Chains.soon("it has read the registry", () -> !ring.serversOf("7").isEmpty());
            ask.of(ring);
        }
        return ports;
    }

    private interface ByRing {
        Object of(Ring ring) throws TException;
    }

    private static String put(Ring ring, String key, String value) throws TException {
        ring.put(key, value);
        return "written";
    }

    static void byteKeysGoByTheirHash(Path folder) throws Exception {
        Chains chains = new Chains(folder, "users:bytes", new String[] {"a=1", "b=1"}, 1);
        int[] thrift = chains.thrift.get(0);
        try (Ring ring = new Ring(chains.zooKeeper(), Chains.NODE, Keys.BYTES)) {
            // As CLUSTER KEYSLOT of redis-server 7.0 tells: foo is of slot 12182, bar of 5061, {bar} of any with it.
            Chains.soon("both have registered", () ->
                ring.serversOf("bar").equals(at(thrift[0])) && ring.serversOf("foo").equals(at(thrift[1])));
            Map<String, String> pairs = new LinkedHashMap<>();
            for (String key : List.of("foo", "bar", "ключ", "{foo}1", "{bar}1", "{}foo", "a{", "}{foo}")) {
                pairs.put(key, "of " + key);
            }
            ring.multiPut(pairs);
            List<DataType> found = ring.multiGet(new ArrayList<>(pairs.keySet()));
            Check.equal(new ArrayList<>(pairs.values()), found.stream().map(DataType::getValue).toList());
            Check.equal(ring.serversOf("foo"), ring.serversOf("{foo}{bar}"));
            Check.equal(ring.serversOf("bar"), ring.serversOf("x{bar}"));
            Check.refused(TApplicationException.UNKNOWN, "KEY_BYTES_MAX", () -> ring.get("x".repeat(5_000)));
            Check.equal("of foo", ring.get("foo"));
            // Each chain keeps those that the ring asks it for.
            for (String key : pairs.keySet()) {
                int port = ring.serversOf(key).get(0).port();
                Check.equal("of " + key, asked(port, client -> client.get(key)));
            }
        }
    }

    static void aServerIsKilledWhileClientsReadAndWrite(Path folder) throws Exception {
        Chains chains = new Chains(folder, "users:int", new String[] {"a=1,2", "b=2,1"}, 2);
        for (String name : NONSENSE) {
            chains.register(name);
        }
        // It looks like an instance, and is none.
        chains.register("thriftbinary_" + key(2) + ":127.0.0.1:" + Chains.freePort());
        int[] two = chains.thrift.get(1);
        AtomicBoolean over = new AtomicBoolean();
        AtomicInteger written = new AtomicInteger();
        ExecutorService writers = Executors.newFixedThreadPool(WRITERS);
        Duration much = Duration.ofSeconds(30);
        try (Ring ring = new Ring(chains.zooKeeper(), Chains.NODE, Keys.INTS, much, Connector.PLAIN)) {
            String far = key(Keys.SLOTS / 2);
            Chains.soon("all have registered", () ->
                ring.serversOf("200000").size() == 2 && ring.serversOf(far).size() == 2);
            Check.equal(NONSENSE.stream().sorted().toList(), ring.strange());
            List<Future<Map<String, Integer>>> counting = new ArrayList<>();
            for (int writer = 0; writer < WRITERS; writer++) {
                int number = writer;
                counting.add(writers.submit(() -> count(ring, number, over, written)));
            }
            Chains.soon("they write", () -> written.get() > 100);
            // It heads the chain a, and answers for b.
            chains.kill(1);
            int before = written.get();
            Chains.soon("they write again", () -> written.get() > before + 100);
            Chains.soon("the killed server is gone from the registry", () ->
                ring.serversOf("200000").equals(at(two[0])) && ring.serversOf(far).equals(at(two[1])));
            int then = written.get();
            Chains.soon("they go on", () -> written.get() > then + 100);
            over.set(true);
            Map<String, Integer> all = new HashMap<>();
            for (Future<Map<String, Integer>> counted : counting) {
                all.putAll(counted.get());
            }
            List<String> keys = all.keySet().stream().sorted().toList();
            Map<String, Integer> read = new HashMap<>();
            ring.multiGet(keys).forEach(pair -> read.put(pair.getKey(), Integer.valueOf(pair.getValue())));
            Check.equal(all, read);
        } finally {
            over.set(true);
            writers.shutdownNow();
        }
    }

    /** Counts keys up until it is over, and returns how far. */
    private static Map<String, Integer> count(Ring ring, int writer, AtomicBoolean over, AtomicInteger written)
            throws Exception {
        Map<String, Integer> counted = new HashMap<>();
        // Each writer has keys of its own, so that it knows what became of an answer that was lost.
        List<String> keys = List.of(key(writer), key(10 + writer), key(Keys.SLOTS / 2 + writer));
        for (int turn = 0; !over.get(); turn++) {
            String key = keys.get(turn % keys.size());
            int last = counted.getOrDefault(key, 0);
            setFrom(ring, key, last == 0 ? null : String.valueOf(last), String.valueOf(last + 1));
            counted.put(key, last + 1);
            written.incrementAndGet();
            Check.equal(String.valueOf(last + 1), patiently(ring, key));
        }
        return counted;
    }

    /** Writes a value over the last one. A write whose answer is lost may be done later, and then must not count. */
    private static void setFrom(Ring ring, String key, String last, String next) throws Exception {
        AtomicBoolean unknown = new AtomicBoolean();
        AtomicBoolean did = new AtomicBoolean();
        Chains.soon(key + " is written", () -> {
            try {
                did.set(ring.compareAndSet(key, last, next));
                return true;
            } catch (OutcomeUnknownException | TApplicationException error) {
                // The head is gone.
                unknown.set(true);
                return false;
            }
        });
        boolean done = did.get() || unknown.get() && next.equals(patiently(ring, key));
        Check.holds(done, last + " was acknowledged for " + key);
    }

    private static String patiently(Ring ring, String key) throws Exception {
        List<String> found = new ArrayList<>();
        Chains.soon(key + " is read", () -> {
            try {
                found.add(ring.get(key));
                return true;
            } catch (TApplicationException error) {
                return false;
            }
        });
        return found.get(0);
    }

    static void aWriteWhoseAnswerIsLostIsNotSentAgain(Path folder) throws Exception {
        Chains registry = new Chains(folder);
        try (Server server = new Server(folder);
                Relay first = new Relay(server.port());
                Relay second = new Relay(server.port());
                Ring ring = new Ring(registry.zooKeeper(), Chains.NODE, Keys.BYTES)) {
            for (String name : NONSENSE) {
                registry.register(name);
            }
            for (Relay relay : List.of(first, second)) {
                registry.register("thriftbinary_16384:127.0.0.1:" + relay.port());
            }
            Chains.soon("both are found", () -> ring.serversOf("k").size() == 2);
            boolean firstIsAsked = ring.serversOf("k").get(0).port() == first.port();
            Relay asked = firstIsAsked ? first : second;
            Relay spare = firstIsAsked ? second : first;
            asked.loses(true);
            List<Check.Call> writes = List.of(
                () -> put(ring, "k", "1"),
                () -> ring.add("added", "1"),
                () -> ring.update("k", "2"),
                () -> ring.compareAndSet("k", "2", "3"),
                () -> put(ring, Map.of("m", "1", "n", "2")),
                () -> ring.remove("added"),
                () -> ring.removeMany(List.of("m", "n")));
            for (Check.Call write : writes) {
                Check.thrown(write, List.of(OutcomeUnknownException.class));
                Check.equal(1, asked.calls());
                Check.equal(0, spare.calls());
            }
            // Each was done once.
            List<DataType> all = asked(server.port(), client -> client.iterate(ByteBuffer.allocate(0), 10).getData());
            Check.equal(List.of(new DataType("k", "3")), all);
            // What reads is asked of the other.
            Check.equal("3", ring.get("k"));
            Check.holds(ring.has("k") && ring.multiGet(List.of("k", "m")).size() == 1, "the other answers");
            Check.equal(List.of(3, 3), List.of(asked.calls(), spare.calls()));
            // One that is not reached was asked for nothing: a write goes to the other.
            asked.close();
            ring.put("k", "4");
            Check.equal(1, spare.calls());
            spare.loses(true);
            Check.thrown(() -> put(ring, "k", "5"), List.of(OutcomeUnknownException.class));
            spare.loses(false);
            Check.equal("5", ring.get("k"));
        }
    }

    private static String put(Ring ring, Map<String, String> pairs) throws TException {
        ring.multiPut(pairs);
        return "written";
    }

    static void aRegistryThatLosesAllIsFollowedAgain(Path folder) throws Exception {
        Chains registry = new Chains(folder);
        try (Server server = new Server(folder);
                Ring ring = new Ring(registry.zooKeeper(), Chains.NODE, Keys.BYTES)) {
            String name = "thriftbinary_16384:127.0.0.1:" + server.port();
            Check.equal(List.of(), ring.serversOf("k"));
            // A call waits for the first that registers.
            ExecutorService early = Executors.newSingleThreadExecutor();
            Future<String> waits = early.submit(() -> put(ring, "k", "1"));
            registry.register(name);
            Check.equal("written", waits.get());
            early.shutdown();
            registry.loseZooKeeper();
            Check.equal("1", ring.get("k"));
            registry.startZooKeeper();
            Chains.soon("it sees that there is none", () -> ring.serversOf("k").isEmpty());
            registry.register(name);
            Chains.soon("it sees it again", () -> ring.serversOf("k").equals(at(server.port())));
            registry.unregister(name);
            Chains.soon("it sees that it is gone", () -> ring.serversOf("k").isEmpty());
        }
        Ring closed = new Ring(registry.zooKeeper(), Chains.NODE, Keys.BYTES, Duration.ofMillis(1), Connector.PLAIN);
        Exception none = Check.thrown(() -> closed.get("k"), List.of(UnreachableException.class));
        Check.holds(none.getMessage().contains("none is registered"), "it is said: " + none);
        closed.close();
        for (String node : List.of("data", "", "/")) {
            Check.Call made = () -> new Ring(registry.zooKeeper(), node, Keys.BYTES);
            Check.thrown(made, List.of(IllegalArgumentException.class));
        }
    }

    static void whatIsNoInstanceIsNone(Path folder) {
        Optional<Instance> instance = Optional.of(new Instance(7, "thriftbinary", new Address("h", 9_901)));
        for (String name : List.of("thriftbinary_7:h:9901", "thriftbinary 7:h:9901", "thriftbinary:7:h:9901")) {
            Check.equal(instance, Instance.parse(name));
        }
        Check.equal("::1", Instance.parse("thriftbinary_7:[::1]:9901").orElseThrow().address().host());
        Check.equal("[::1]:9901", Instance.parse("thriftbinary_7:[::1]:9901").orElseThrow().address().toString());
        for (String name : List.of("", "x", "_", "thriftbinary", "thriftbinary_x:h:9901", "thriftbinary_+7:h:9901",
                "thriftbinary_7:h:0", "thriftbinary_7:h:70000", "thriftbinary_7::1", "thriftbinary_7:h:1:", "_7:h:9901",
                "thriftbinary_99999999999999999999:h:9901", "thriftbinary_7:h i:9901", "p".repeat(65) + "_7:h:9901")) {
            Check.equal(Optional.empty(), Instance.parse(name));
        }
    }
}
