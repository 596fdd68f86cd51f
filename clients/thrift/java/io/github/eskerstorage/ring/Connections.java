package io.github.eskerstorage.ring;

import io.github.eskerstorage.ring.Instance.Address;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.transport.TTransport;
import org.apache.thrift.transport.TTransportException;
import vn.zdb.EskerKeys;

/**
 * Connections to servers: a call has one to itself while it lasts, and leaves it to the next.
 *
 * <p>Invariant: what lies idle has no call under way, so that closing it leaves no outcome unknown.
 */
final class Connections implements AutoCloseable {
    /** How long a server that was not reached is asked after the others. */
    private static final long REST_NANOS = 3_000_000_000L;

    private final Connector connector;
    private final Map<Address, Deque<Connection>> idle = new HashMap<>();
    private final Map<Address, Long> unreached = new HashMap<>();
    private boolean closed;

    /** One connection, and the client that the compiler has generated. */
    record Connection(Address server, TTransport transport, EskerKeys.Iface client) {}

    Connections(Connector connector) {
        this.connector = connector;
    }

    /**
     * One that lies idle, or a new one.
     *
     * @throws TTransportException where the server is not reached
     */
    Connection take(Address server) throws TTransportException {
        synchronized (this) {
            if (closed) {
                throw new IllegalStateException("the ring is closed");
            }
            Deque<Connection> lying = idle.get(server);
            if (lying != null && !lying.isEmpty()) {
                return lying.pop();
            }
        }
        try {
            TTransport transport = connector.open(server.host(), server.port());
            synchronized (this) {
                unreached.remove(server);
            }
            return new Connection(server, transport, new EskerKeys.Client(new TBinaryProtocol(transport)));
        } catch (TTransportException error) {
            synchronized (this) {
                unreached.put(server, System.nanoTime());
            }
            throw error;
        }
    }

    /** Leaves a connection, whose last call was answered, to the next. */
    void give(Connection connection) {
        synchronized (this) {
            if (!closed) {
                idle.computeIfAbsent(connection.server(), server -> new ArrayDeque<>()).push(connection);
                return;
            }
        }
        connection.transport().close();
    }

    /** Ends a connection that has failed, and those that lie idle beside it: its server may have gone. */
    void fail(Connection connection) {
        connection.transport().close();
        endIdle(connection.server()::equals);
    }

    /** Ends the connections that lie idle to such servers. */
    void endIdle(Predicate<Address> to) {
        List<Connection> ended = new ArrayList<>();
        synchronized (this) {
            idle.keySet().stream().filter(to).toList().forEach(server -> ended.addAll(idle.remove(server)));
            unreached.keySet().removeIf(to);
        }
        ended.forEach(connection -> connection.transport().close());
    }

    /** Puts those last that were not reached a moment ago. */
    synchronized List<Address> inOrder(List<Address> servers) {
        long now = System.nanoTime();
        unreached.values().removeIf(since -> now - since > REST_NANOS);
        List<Address> order = new ArrayList<>(servers);
        order.removeIf(unreached::containsKey);
        servers.stream().filter(unreached::containsKey).forEach(order::add);
        return order;
    }

    @Override
    public void close() {
        synchronized (this) {
            closed = true;
        }
        endIdle(server -> true);
    }
}
