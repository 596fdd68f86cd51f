package io.github.eskerstorage.ring;

import org.apache.thrift.TConfiguration;
import org.apache.thrift.transport.TSocket;
import org.apache.thrift.transport.TTransport;
import org.apache.thrift.transport.TTransportException;
import org.apache.thrift.transport.layered.TFramedTransport;

/** Makes connections to servers; another than {@link #PLAIN} may speak TLS. */
@FunctionalInterface
public interface Connector {
    /** How long a connection may take to be made, in milliseconds. */
    int CONNECT_MS_MAX = 3_000;
    /** How long an answer may take, in milliseconds. A server waits ten seconds for other chains. */
    int ANSWER_MS_MAX = 15_000;
    /** The largest answer, in bytes. */
    int FRAME_BYTES_MAX = 65 << 20;

    /** TCP, in frames. */
    Connector PLAIN = (host, port) -> {
        TSocket socket = new TSocket(new TConfiguration(), host, port, ANSWER_MS_MAX, CONNECT_MS_MAX);
        TTransport transport = new TFramedTransport(socket, FRAME_BYTES_MAX);
        transport.open();
        return transport;
    };

    /**
     * An open transport to a server, on which the binary protocol is spoken.
     *
     * @throws TTransportException where the server cannot be reached
     */
    TTransport open(String host, int port) throws TTransportException;
}
