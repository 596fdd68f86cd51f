import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.thrift.TApplicationException;
import org.apache.thrift.TException;
import org.apache.thrift.async.AsyncMethodCallback;
import org.apache.thrift.async.TAsyncClientManager;
import org.apache.thrift.protocol.TMessage;
import org.apache.thrift.protocol.TMessageType;
import org.apache.thrift.protocol.TProtocol;
import org.apache.thrift.protocol.TStruct;
import org.apache.thrift.transport.TNonblockingSocket;
import org.apache.thrift.transport.TSocket;
import org.apache.thrift.transport.TTransport;
import org.apache.thrift.transport.layered.TFramedTransport;
import vn.zdb.EskerKeys;

/**
 * A connection of a generated client in a shape. Notes which methods were answered in which shape, so that none is left
 * out.
 */
final class Connection implements AutoCloseable {
    /** For every wait for an answer: a server that does not answer fails a test, and does not hang it. */
    static final int ANSWER_MS_MAX = 60_000;
    /** Of the largest answer; clients refuse frames above 16,384,000 bytes if nothing is said. */
    private static final int FRAME_BYTES_MAX = 65 << 20;
    private static final Map<Shape, Set<String>> ANSWERED = new ConcurrentHashMap<>();

    /** The methods of both services. */
    final EskerKeys.Iface keys;
    private final int port;
    private final Shape shape;
    /** Of a client that waits. */
    private TTransport transport;
    private TProtocol protocol;
    /** Of a client with callbacks. */
    private TAsyncClientManager manager;
    private EskerKeys.AsyncClient asynchronous;
    private TNonblockingSocket socket;

    /** A connection to a port of loopback. */
    Connection(Server server, Shape shape) throws TException, IOException {
        this.port = server.port();
        this.shape = shape;
        if (shape.waits()) {
            open(new TSocket("127.0.0.1", port, ANSWER_MS_MAX));
            keys = noting(new EskerKeys.Client(protocol));
        } else {
            manager = new TAsyncClientManager();
            keys = noting(null);
        }
    }

    /** A connection by this transport, which may be open already. */
    Connection(TTransport under, Shape shape) throws TException {
        this.port = 0;
        this.shape = shape;
        open(under);
        keys = noting(new EskerKeys.Client(protocol));
    }

    private void open(TTransport under) throws TException {
        transport = shape.way() == Shape.Way.FRAMED ? new TFramedTransport(under, FRAME_BYTES_MAX) : under;
        if (!under.isOpen()) {
            under.open();
        }
        protocol = shape.protocol().getProtocol(transport);
    }

    /** The names of all methods of the published services. */
    static Set<String> methods() {
        Set<String> names = new TreeSet<>();
        Arrays.stream(EskerKeys.Iface.class.getMethods()).forEach(method -> names.add(method.getName()));
        return names;
    }

    /** The names of those that were answered in this shape, other than by an exception. */
    static Set<String> answered(Shape shape) {
        return ANSWERED.getOrDefault(shape, Set.of());
    }

    /** The protocol that a client that waits writes to. */
    TProtocol protocol() {
        return protocol;
    }

    private EskerKeys.Iface noting(EskerKeys.Iface client) {
        Class<?>[] services = {EskerKeys.Iface.class};
        Object noting = Proxy.newProxyInstance(Connection.class.getClassLoader(), services, (self, method, given) -> {
            Object answer = client == null ? callBack(method, given) : call(client, method, given);
            ANSWERED.computeIfAbsent(shape, of -> new ConcurrentSkipListSet<>()).add(method.getName());
            return answer;
        });
        return (EskerKeys.Iface) noting;
    }

    private static Object call(Object client, Method method, Object[] given) throws Throwable {
        try {
            return method.invoke(client, given);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }

    /** Calls the method of this name and these parameters that has a callback besides, and awaits that. */
    private Object callBack(Method method, Object[] given) throws Throwable {
        // An AsyncClient that was told of an error can ask nothing more.
        if (asynchronous == null || asynchronous.hasError()) {
            endSocket();
            socket = new TNonblockingSocket("127.0.0.1", port, ANSWER_MS_MAX);
            asynchronous = new EskerKeys.AsyncClient(shape.protocol(), manager, socket);
            asynchronous.setTimeout(ANSWER_MS_MAX);
        }
        int count = method.getParameterCount();
        Class<?>[] types = Arrays.copyOf(method.getParameterTypes(), count + 1);
        Object[] arguments = given == null ? new Object[1] : Arrays.copyOf(given, count + 1);
        CompletableFuture<Object> answer = new CompletableFuture<>();
        types[count] = AsyncMethodCallback.class;
        arguments[count] = new AsyncMethodCallback<Object>() {
            @Override
            public void onComplete(Object response) {
                answer.complete(response);
            }

            @Override
            public void onError(Exception error) {
                answer.completeExceptionally(error);
            }
        };
        call(asynchronous, EskerKeys.AsyncClient.class.getMethod(method.getName(), types), arguments);
        try {
            return answer.get(ANSWER_MS_MAX, TimeUnit.MILLISECONDS);
        } catch (ExecutionException error) {
            throw error.getCause();
        }
    }

    /** What is written as fields of a call, and read of its answer. */
    interface Fields<T> {
        T of(TProtocol protocol) throws TException;
    }

    /** Sends a message of this kind, with these fields, as no generated client would. */
    void send(byte kind, String method, int number, Fields<?> fields) throws TException {
        protocol.writeMessageBegin(new TMessage(method, kind, number));
        protocol.writeStructBegin(new TStruct("arguments"));
        fields.of(protocol);
        protocol.writeFieldStop();
        protocol.writeStructEnd();
        protocol.writeMessageEnd();
        protocol.getTransport().flush();
    }

    /** Reads the answer to a call of this method and number; its exception is thrown. */
    <T> T receive(String method, int number, Fields<T> result) throws TException {
        TMessage head = protocol.readMessageBegin();
        Check.equal(method, head.name);
        Check.equal(number, head.seqid);
        if (head.type == TMessageType.EXCEPTION) {
            TApplicationException error = TApplicationException.readFrom(protocol);
            protocol.readMessageEnd();
            throw error;
        }
        Check.equal(TMessageType.REPLY, head.type);
        T read = result.of(protocol);
        protocol.readMessageEnd();
        return read;
    }

    /** Sends a call and reads its answer. */
    <T> T ask(String method, int number, Fields<?> fields, Fields<T> result) throws TException {
        send(TMessageType.CALL, method, number, fields);
        return receive(method, number, result);
    }

    private void endSocket() {
        if (socket != null) {
            socket.close();
        }
    }

    @Override
    public void close() {
        if (transport != null) {
            transport.close();
        }
        if (manager != null) {
            manager.stop();
        }
        endSocket();
    }
}
