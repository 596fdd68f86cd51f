package io.github.eskerstorage.ring;

import java.io.IOException;
import java.util.function.Consumer;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooKeeper;

/**
 * The node of a service in ZooKeeper, read whenever it changes.
 *
 * <p>event → children of the node, watched anew → {@link Table} → calls that wait for one
 *
 * <p>Invariants: the last table stays while ZooKeeper is gone. A session that has expired, or was not reached for as
 * long as it lasts, is followed by another. Nothing is written.
 */
final class Registry implements AutoCloseable {
    private static final int SESSION_MS = 10_000;
    private static final int RETRY_MS = 200;
    private static final int CLOSE_MS_MAX = 2_000;

    private final String servers;
    private final String node;
    private final Consumer<Table> changes;
    private final Thread follower;
    private Table table = Table.EMPTY;
    private String trouble = "its registry was not read yet";
    private boolean event;
    private boolean closed;

    /** Reads the children of `node` at the ZooKeeper of `servers`, and tells `changes` each table. */
    Registry(String servers, String node, Consumer<Table> changes) {
        if (!node.startsWith("/") || node.length() < 2) {
            throw new IllegalArgumentException("node \"" + node + "\": expected a path such as /data/zdb");
        }
        this.servers = servers;
        this.node = node;
        this.changes = changes;
        follower = new Thread(this::follow, "registry " + node);
        follower.setDaemon(true);
        follower.start();
    }

    synchronized Table table() {
        return table;
    }

    /** Why the table may be old; empty if nothing is known against it. */
    synchronized String trouble() {
        return trouble;
    }

    /** Waits until the table is another than this, or so many milliseconds. */
    synchronized void await(Table seen, long ms) throws InterruptedException {
        if (table == seen && !closed) {
            wait(ms);
        }
    }

    private void follow() {
        ZooKeeper session = null;
        long heard = System.nanoTime();
        try {
            while (true) {
                try {
                    if (session == null) {
                        heard = System.nanoTime();
                        session = new ZooKeeper(servers, SESSION_MS, happened -> wake());
                    }
                    Table read = read(session);
                    heard = System.nanoTime();
                    publish(read);
                    awaitEvent();
                } catch (KeeperException | IOException | IllegalArgumentException error) {
                    fails("its registry at " + servers + " is not read: " + error.getMessage());
                    boolean over = System.nanoTime() - heard > SESSION_MS * 1_000_000L;
                    if (session != null && (over || !session.getState().isAlive())) {
                        session.close(CLOSE_MS_MAX);
                        session = null;
                    }
                    Thread.sleep(RETRY_MS);
                }
            }
        } catch (InterruptedException error) {
            end(session);
        }
    }

    /** The table as it is, with a watch of its next change. */
    private Table read(ZooKeeper session) throws KeeperException, InterruptedException {
        synchronized (this) {
            event = false;
        }
        while (session.exists(node, true) != null) {
            try {
                return new Table(session.getChildren(node, true));
            } catch (KeeperException.NoNodeException error) {
                // It was removed between the two, and may come again.
                Thread.yield();
            }
        }
        return Table.EMPTY;
    }

    private void publish(Table read) {
        changes.accept(read);
        synchronized (this) {
            table = read;
            trouble = "";
            notifyAll();
        }
    }

    private synchronized void fails(String why) {
        trouble = why;
    }

    private synchronized void wake() {
        event = true;
        notifyAll();
    }

    private synchronized void awaitEvent() throws InterruptedException {
        while (!event) {
            wait();
        }
    }

    private static void end(ZooKeeper session) {
        try {
            if (session != null) {
                session.close(CLOSE_MS_MAX);
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void close() {
        synchronized (this) {
            closed = true;
            notifyAll();
        }
        follower.interrupt();
    }
}
