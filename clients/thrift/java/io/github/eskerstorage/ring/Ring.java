package io.github.eskerstorage.ring;

import io.github.eskerstorage.ring.Connections.Connection;
import io.github.eskerstorage.ring.Instance.Address;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.thrift.TApplicationException;
import org.apache.thrift.TException;
import org.apache.thrift.transport.TTransportException;
import vn.zdb.DataType;
import vn.zdb.EskerKeys;

/**
 * Keys on several chains by Apache Thrift: each call goes to a server of the chain that keeps its keys.
 *
 * <p>registry in ZooKeeper, watched → marks → key → the first mark behind it → a server that has it → call
 *
 * <pre>{@code
 * try (Ring ring = new Ring("127.0.0.1:2181", "/data/zdb", Keys.INTS)) {    // esker serve --thrift-registry /data/zdb
 *     ring.put("7", "Ada");
 *     ring.get("7");                                                        // "Ada"
 * }
 * }</pre>
 *
 * <p>Any server answers for all keys, so a ring that has heard of a change late costs a hop and no more, and where no
 * server of a chain is reached the others are asked. Threads may share a ring. Needs libthrift, ZooKeeper's client, and
 * what {@code thrift --gen java zdb.thrift} makes.
 *
 * <p>Invariants:
 * <ol>
 * <li>A write that was sent and not answered is not sent again: {@link OutcomeUnknownException}. What only reads is
 * asked of another server.
 * <li>What others write into the registry is passed over, and told by {@link #strange}.
 * </ol>
 *
 * <p>All calls throw {@link TApplicationException} with what a server has refused, or could not do; of an
 * {@code INTERNAL_ERROR} the message says whether a write was done. They throw {@link UnreachableException} where
 * nothing was done because no server was reached, {@link IllegalArgumentException} for a key that is none, and
 * {@link IllegalStateException} once the ring is closed.
 */
public final class Ring implements AutoCloseable {
    /** For how long a call looks for a server that it can reach, if nothing else is said. */
    public static final Duration PATIENCE = Duration.ofSeconds(10);
    /** Keys of one call to a server. */
    private static final int BATCH_MAX = 4_096;
    private static final long RETRY_MS = 200;

    private final Keys keys;
    private final Duration patience;
    private final Connections connections;
    private final Registry registry;

    /** What is asked on a connection. */
    private interface Ask<T> {
        T of(EskerKeys.Iface client) throws TException;
    }

    /** Of the servers that register below {@code node} of a ZooKeeper ({@code HOST:PORT,...}). */
    public Ring(String zookeeper, String node, Keys keys) {
        this(zookeeper, node, keys, PATIENCE, Connector.PLAIN);
    }

    /**
     * The same with patience of one's own, and connections of one's own making. Nothing is waited for: the first calls
     * are, for as long as patience lasts, until the registry is read.
     */
    public Ring(String zookeeper, String node, Keys keys, Duration patience, Connector connector) {
        this.keys = keys;
        this.patience = patience;
        connections = new Connections(connector);
        registry = new Registry(zookeeper, node, table -> connections.endIdle(server -> !table.has(server)));
    }

    /** Ends all connections that have no call, and the session. Calls that are under way end theirs. */
    @Override
    public void close() {
        registry.close();
        connections.close();
    }

    /** Where a key is, as it was registered last; empty while none is. */
    public List<Address> serversOf(String key) {
        return registry.table().keepersOf(keys.placeOf(key));
    }

    /** Nodes of the registry that are no instances of the service. */
    public List<String> strange() {
        return registry.table().strange();
    }

    /** The value; null where there is no such key. */
    public String get(String key) throws TException {
        return call(key, true, client -> {
            try {
                return client.get(key);
            } catch (TApplicationException error) {
                if (error.getType() == TApplicationException.MISSING_RESULT) {
                    return null;
                }
                throw error;
            }
        });
    }

    /** Whether there is such a key. */
    public boolean has(String key) throws TException {
        return call(key, true, client -> client.has(key));
    }

    /** Writes a value. */
    public void put(String key, String value) throws TException {
        Objects.requireNonNull(value, "value");
        call(key, false, client -> client.put(key, value));
    }

    /** Whether there was such a key. */
    public boolean remove(String key) throws TException {
        return call(key, false, client -> client.remove(key)) == 0;
    }

    /** Writes a value if the key is absent, and says whether it did. */
    public boolean add(String key, String value) throws TException {
        Objects.requireNonNull(value, "value");
        return call(key, false, client -> client.add(key, value));
    }

    /** Writes a value if the key is present, and says whether it did. */
    public boolean update(String key, String value) throws TException {
        Objects.requireNonNull(value, "value");
        return call(key, false, client -> client.update(key, value));
    }

    /** Writes a value if that which is there is {@code expected}, null for none, and says whether it did. */
    public boolean compareAndSet(String key, String expected, String value) throws TException {
        Objects.requireNonNull(value, "value");
        return call(key, false, client -> client.compareAndSet(key, expected, value));
    }

    /** The pairs that are there, in the order in which they were asked for. */
    public List<DataType> multiGet(List<String> keys) throws TException {
        Map<String, DataType> found = new HashMap<>();
        for (List<String> part : parts(new LinkedHashSet<>(keys))) {
            List<DataType> pairs = call(part.get(0), true, client -> client.multiGet(part));
            pairs.forEach(pair -> found.put(pair.getKey(), pair));
        }
        return keys.stream().map(found::get).filter(Objects::nonNull).toList();
    }

    /** All or none of the pairs of one chain; where an error comes, those of other chains may be written. */
    public void multiPut(Map<String, String> pairs) throws TException {
        pairs.values().forEach(value -> Objects.requireNonNull(value, "value"));
        for (List<String> part : parts(pairs.keySet())) {
            List<DataType> data = part.stream().map(key -> new DataType(key, pairs.get(key))).toList();
            call(part.get(0), false, client -> {
                client.multiPut(data);
                return null;
            });
        }
    }

    /** How many of these there were, which are removed; of one chain all or none. */
    public long removeMany(Collection<String> keys) throws TException {
        long removed = 0;
        for (List<String> part : parts(new LinkedHashSet<>(keys))) {
            removed += call(part.get(0), false, client -> client.removeMany(part));
        }
        return removed;
    }

    /** The keys by the servers that keep them, as many as one call may have. */
    private List<List<String>> parts(Collection<String> of) {
        Table table = registry.table();
        Map<List<Address>, List<String>> byServers = new LinkedHashMap<>();
        for (String key : of) {
            byServers.computeIfAbsent(table.keepersOf(keys.placeOf(key)), servers -> new ArrayList<>()).add(key);
        }
        List<List<String>> parts = new ArrayList<>();
        for (List<String> part : byServers.values()) {
            for (int at = 0; at < part.size(); at += BATCH_MAX) {
                parts.add(part.subList(at, Math.min(at + BATCH_MAX, part.size())));
            }
        }
        return parts;
    }

    private <T> T call(String key, boolean reads, Ask<T> ask) throws TException {
        long place = keys.placeOf(key);
        long until = System.nanoTime() + patience.toNanos();
        String last = "none is registered";
        Exception cause = null;
        do {
            Table table = registry.table();
            for (Address server : connections.inOrder(table.orderFor(place))) {
                if (cause != null && System.nanoTime() >= until) {
                    break;
                }
                Connection connection;
                try {
                    connection = connections.take(server);
                } catch (TTransportException error) {
                    last = server + ": " + error.getMessage();
                    cause = error;
                    continue;
                }
                try {
                    return asked(connection, ask);
                } catch (Unanswered error) {
                    last = server + ": " + error.getCause();
                    cause = error;
                    if (!reads) {
                        throw new OutcomeUnknownException(last, error.getCause());
                    }
                }
            }
            pause(table, until, key);
        } while (System.nanoTime() < until);
        String trouble = registry.trouble();
        String why = "for " + patience + " no server of key \"" + key + "\" was reached; the last: " + last;
        throw new UnreachableException(trouble.isEmpty() ? why : why + "; " + trouble, cause);
    }

    /** A call that no server has answered. */
    private static final class Unanswered extends Exception {
        private static final long serialVersionUID = 1;

        Unanswered(Exception cause) {
            super(cause);
        }
    }

    private <T> T asked(Connection connection, Ask<T> ask) throws TApplicationException, Unanswered {
        try {
            T answer = ask.of(connection.client());
            connections.give(connection);
            return answer;
        } catch (TApplicationException error) {
            switch (error.getType()) {
                case TApplicationException.BAD_SEQUENCE_ID,
                    TApplicationException.WRONG_METHOD_NAME,
                    TApplicationException.MISSING_RESULT -> {
                    // Found here: what came is no answer to this call.
                    connections.fail(connection);
                    throw new Unanswered(error);
                }
                case TApplicationException.UNKNOWN -> connections.give(connection);
                // The server may close it.
                default -> connection.transport().close();
            }
            throw error;
        } catch (TException | RuntimeException error) {
            connections.fail(connection);
            throw new Unanswered(error);
        }
    }

    /** Waits a moment, or until another has registered. */
    private void pause(Table table, long until, String key) throws UnreachableException {
        try {
            long left = (until - System.nanoTime()) / 1_000_000;
            if (left > 0) {
                registry.await(table, Math.min(RETRY_MS, left));
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new UnreachableException("interrupted before a server of key \"" + key + "\" was reached", error);
        }
    }
}
