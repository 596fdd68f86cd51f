import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.thrift.TApplicationException;
import org.apache.thrift.TException;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.protocol.TMessage;
import org.apache.thrift.protocol.TMessageType;
import org.apache.thrift.protocol.TProtocolException;
import org.apache.thrift.transport.TIOStreamTransport;
import org.apache.thrift.transport.TSocket;
import org.apache.thrift.transport.TTransport;
import org.apache.thrift.transport.TTransportException;
import org.apache.thrift.transport.layered.TFramedTransport;
import vn.zdb.DataType;
import vn.zdb.EskerKeys;
import vn.zdb.Mode;
import vn.zdb.ZDBService;

/** What is tested once: what is no matter of a protocol. */
final class OneServer {
    private static final List<Shape> THAT_WAIT = Shape.ALL.stream().filter(Shape::waits).toList();
    private static final Shape FRAMED = THAT_WAIT.get(THAT_WAIT.size() - 1);

    private OneServer() {}

    private static DataType pair(String key, String value) {
        return new DataType(key, value);
    }

    static void aCallWritesAndRemovesSoMuch(Path folder) throws Exception {
        String largest = "v".repeat(EveryShape.VALUE_BYTES_MAX);
        List<DataType> much = List.of(pair("1", largest), pair("2", largest), pair("rest", "v".repeat(7 << 20)));
        List<DataType> more = List.of(pair("3", largest), pair("4", largest), pair("rest", "v".repeat(9 << 20)));
        Files.createDirectory(folder.resolve("small"));
        try (Server server = new Server(folder.resolve("small"));
                Connection connection = new Connection(server, Shape.DEFAULT)) {
            // A store of less than 8 GiB takes less.
            Check.refused(TApplicationException.UNKNOWN, "one record", () -> written(connection.keys, much));
            Check.equal(0L, connection.keys.count());
        }
        try (Server server = new Server(folder, "--store", "data?size=8g");
                Connection connection = new Connection(server, Shape.DEFAULT)) {
            EskerKeys.Iface keys = connection.keys;
            keys.multiPut(much);
            Check.refused(TApplicationException.UNKNOWN, "TRANSACTION_BYTES_MAX", () -> written(keys, more));
            Check.equal(3L, keys.count());
            for (String key : List.of("3", "4", "5")) {
                keys.put(key, largest);
            }
            List<String> all = List.of("1", "2", "3", "4", "5");
            Check.refused(TApplicationException.UNKNOWN, "ANSWER_BYTES_MAX", () -> keys.removeMany(all));
            Check.equal(6L, keys.count());
            Check.equal(3L, keys.removeMany(all.subList(0, 3)));
            Check.equal(2L, keys.removeMany(all));
        }
    }

    private static String written(EskerKeys.Iface keys, List<DataType> pairs) throws TException {
        keys.multiPut(pairs);
        return "written";
    }

    static void aServerThatHasNoMemoryOrPlaceSaysSo(Path folder) throws Exception {
        Files.writeString(folder.resolve("esker.toml"), """
            [serve]
            thrift_memory = "193M"
            thrift_connections = 2
            """);
        int busy = TApplicationException.INTERNAL_ERROR;
        List<String> four = List.of("1", "2", "3", "4");
        String largest = "v".repeat(EveryShape.VALUE_BYTES_MAX);
        try (Server server = new Server(folder, "--config", "esker.toml");
                Connection first = new Connection(server, Shape.DEFAULT);
                Connection second = new Connection(server, Shape.DEFAULT)) {
            for (String key : four) {
                Check.equal(0, first.keys.put(key, largest));
            }
            Check.equal(true, second.keys.has("1"));
            try (Connection third = new Connection(server, Shape.DEFAULT)) {
                Check.refused(busy, "thrift_connections", () -> third.keys.has("1"));
            }
            // The first has the memory for answers for as long as it does not take its own.
            EskerKeys.Client waits = new EskerKeys.Client(first.protocol());
            waits.send_multiGet(four);
            TMessage head = first.protocol().readMessageBegin();
            Check.equal(TMessageType.REPLY, head.type);
            Check.refused(busy, "thrift_memory", () -> second.keys.multiGet(four));
            ZDBService.multiGet_result answer = new ZDBService.multiGet_result();
            answer.read(first.protocol());
            first.protocol().readMessageEnd();
            Check.equal(four.stream().map(key -> pair(key, largest)).toList(), answer.getSuccess());
            // Which it has given back when it answers the next call.
            Check.equal(true, first.keys.has("1"));
            Check.equal(4, second.keys.multiGet(four).size());
        }
    }

    static void aStoreThatIsFullIsAnInternalError(Path folder) throws Exception {
        try (Server server = new Server(folder, "--store", "data?size=256m");
                Connection connection = new Connection(server, Shape.DEFAULT)) {
            EskerKeys.Iface keys = connection.keys;
            String value = "v".repeat(1 << 20);
            int written = 0;
            TApplicationException full = null;
            while (full == null) {
                try {
                    Check.equal(0, keys.put("k" + written, value));
                    written++;
                } catch (TApplicationException error) {
                    full = error;
                }
            }
            Check.equal(TApplicationException.INTERNAL_ERROR, full.getType());
            Check.holds(full.getMessage().contains("full"), "the store says that it is full: " + full.getMessage());
            Check.holds(written > 0, "something was written before the store was full");
            // It was not done, what was is there, and the connection goes on.
            Check.equal(false, keys.has("k" + written));
            Check.equal((long) written, keys.count());
            Check.equal(value, keys.get("k" + (written - 1)));
            Check.equal(0, keys.remove("k0"));
        }
    }

    /** What the IDL says of clients: frames above 16,384,000 bytes are refused by them if nothing is said. */
    static void aClientOfWhichNothingIsSaidRefusesLargeFrames(Path folder) throws Exception {
        try (Server server = new Server(folder); Connection connection = new Connection(server, Shape.DEFAULT)) {
            String large = "v".repeat(16_384_000);
            Check.equal(0, connection.keys.put("large", large));
            try (TTransport unframed = new TSocket("127.0.0.1", server.port(), Connection.ANSWER_MS_MAX)) {
                unframed.open();
                Check.equal(large, new EskerKeys.Client(new TBinaryProtocol(unframed)).get("large"));
            }
            TSocket socket = new TSocket("127.0.0.1", server.port(), Connection.ANSWER_MS_MAX);
            try (TTransport framed = new TFramedTransport(socket)) {
                framed.open();
                EskerKeys.Client keys = new EskerKeys.Client(new TBinaryProtocol(framed));
                Check.equal(true, keys.has("large"));
                Exception error = Check.thrown(() -> keys.get("large"), List.of(TTransportException.class));
                Check.holds(error.getMessage().contains("larger than max length"), "the client says why: " + error);
            }
        }
    }

    static void bytesOfNoProtocolCloseTheConnection(Path folder) throws Exception {
        try (Server server = new Server(folder)) {
            byte[] ones = new byte[64];
            Arrays.fill(ones, (byte) 0x7f);
            byte[] version = {(byte) 0x80, 2, 0, 1, 0, 0, 0, 0};
            byte[] http = "GET / HTTP/1.1\r\n\r\n".getBytes(StandardCharsets.US_ASCII);
            byte[] redis = "*1\r\n$4\r\nPING\r\n".getBytes(StandardCharsets.US_ASCII);
            for (byte[] sent : List.of(http, redis, version, ones)) {
                try (Socket socket = new Socket("127.0.0.1", server.port())) {
                    socket.setSoTimeout(Connection.ANSWER_MS_MAX);
                    socket.getOutputStream().write(sent);
                    // It ends, after what it was told if anything, and is not only silent.
                    socket.getInputStream().readAllBytes();
                    Check.equal(-1, socket.getInputStream().read());
                }
            }
        }
    }

    static void manyClientsAddToOneCounter(Path folder) throws Exception {
        try (Server server = new Server(folder); Connection connection = new Connection(server, Shape.DEFAULT)) {
            Check.equal(true, connection.keys.add("counter", "0"));
            int each = 25;
            List<Callable<Void>> clients = new ArrayList<>();
            for (Shape shape : Shape.ALL) {
                clients.add(() -> {
                    add(server, shape, each);
                    return null;
                });
            }
            ExecutorService threads = Executors.newFixedThreadPool(clients.size());
            try {
                for (Future<Void> done : threads.invokeAll(clients)) {
                    done.get();
                }
            } finally {
                threads.shutdownNow();
            }
            Check.equal(String.valueOf(clients.size() * each), connection.keys.get("counter"));
            Check.equal(1L + clients.size() * each, connection.keys.count());
        }
    }

    /** Adds one, so many times, and writes a key of its own each time. */
    private static void add(Server server, Shape shape, int times) throws Exception {
        try (Connection connection = new Connection(server, shape)) {
            for (int n = 0; n < times; n++) {
                String own = shape + "/" + n;
                Check.equal(0, connection.keys.put(own, own));
                String seen;
                do {
                    seen = connection.keys.get("counter");
                } while (!connection.keys.compareAndSet("counter", seen, String.valueOf(Integer.parseInt(seen) + 1)));
                Check.equal(own, connection.keys.get(own));
            }
        }
    }

    static void theModeAtTheStartIsThatOfTheSettings(Path folder) throws Exception {
        try (Server server = new Server(folder, "--thrift-mode", "asynchronous", "--thrift-namespace", "cache:bytes");
                Connection connection = new Connection(server, Shape.DEFAULT)) {
            Check.equal(Mode.ASYNCHRONOUS, connection.keys.mode());
            connection.keys.setMode(Mode.SAFE);
            Check.equal(0, connection.keys.put("safe", "v"));
            // Of all clients of the service.
            try (Connection other = new Connection(server, FRAMED)) {
                Check.equal(Mode.SAFE, other.keys.mode());
                other.keys.setMode(Mode.ASYNCHRONOUS);
            }
            Check.equal(Mode.ASYNCHRONOUS, connection.keys.mode());
            Check.equal(0, connection.keys.put("asynchronous", "v"));
        }
        // A server that is told to stop loses nothing. The mode that was set is forgotten.
        Server server = new Server(folder, "--thrift-namespace", "cache");
        try (Connection connection = new Connection(server, Shape.DEFAULT)) {
            Check.equal(Mode.SAFE, connection.keys.mode());
            Check.equal("v", connection.keys.get("asynchronous"));
            Check.equal(0, connection.keys.put("safe", "w"));
        }
        // What was acknowledged in safe mode survives a kill.
        server.kill();
        try (Server again = new Server(folder, "--thrift-namespace", "cache");
                Connection connection = new Connection(again, Shape.DEFAULT)) {
            Check.equal("w", connection.keys.get("safe"));
        }
        // A namespace keeps its kind.
        Check.thrown(() -> new Server(folder, "--thrift-namespace", "cache:int"), List.of(IOException.class));
    }

    static void aUnixSocketIsServed(Path folder) throws Exception {
        Path path = folder.resolve("thrift.sock");
        try (Server server = new Server(folder, "--thrift-unix-socket", "thrift.sock");
                SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX)) {
            Check.equal(0, server.port());
            channel.connect(UnixDomainSocketAddress.of(path));
            InputStream in = Channels.newInputStream(channel);
            try (TTransport streams = new TIOStreamTransport(in, Channels.newOutputStream(channel));
                    Connection connection = new Connection(streams, FRAMED)) {
                Check.equal(0, connection.keys.put("k", "v"));
                Check.equal("v", connection.keys.get("k"));
            }
        }
        Check.equal(false, Files.exists(path));
    }

    static void clientsAreKnownByTheirCertificatesAndDoWhatTheirUsersMay(Path folder) throws Exception {
        Certificates certificates = new Certificates(folder);
        for (String name : List.of("ops", "app", "look", "other", "strange")) {
            certificates.issue(name + ".example");
        }
        certificates.issue("server");
        Files.writeString(folder.resolve("users.toml"), """
            [[user]]
            name = "ops"
            role = "operator"
            certificates = ["ops.example"]
            [[user]]
            name = "app"
            role = "writer"
            certificates = ["app.example"]
            keys = ["app:*"]
            names = ["shop"]
            [[user]]
            name = "look"
            role = "reader"
            certificates = ["look.example"]
            [[user]]
            name = "other"
            role = "writer"
            certificates = ["other.example"]
            faces = ["log"]
            """);
        Files.writeString(folder.resolve("esker.toml"), """
            [serve]
            users_file = "users.toml"
            tls_cert = "server.pem"
            tls_key = "server-key.pem"
            tls_client_ca = "ca.pem"
            thrift_namespace = "shop"
            """);
        int refused = TApplicationException.UNKNOWN;
        ByteBuffer start = ByteBuffer.allocate(0);
        try (Server server = new Server(folder, "--config", "esker.toml")) {
            for (Shape shape : THAT_WAIT) {
                try (Connection app = new Connection(certificates.connect(server, "app.example"), shape)) {
                    EskerKeys.Iface keys = app.keys;
                    Check.equal(0, keys.put("app:1", "v"));
                    Check.equal("v", keys.get("app:1"));
                    List<DataType> pairs = List.of(pair("app:2", "v"), pair("other", "v"));
                    List<Check.Call> denied = new ArrayList<>();
                    Collections.addAll(denied, () -> keys.get("other"), () -> keys.has("other"));
                    Collections.addAll(denied, () -> keys.put("other", "v"), () -> keys.remove("other"));
                    Collections.addAll(denied, () -> keys.add("other", "v"), () -> keys.update("other", "v"));
                    denied.add(() -> keys.compareAndSet("other", null, "v"));
                    denied.add(() -> keys.multiGet(List.of("app:1", "other")));
                    denied.add(() -> keys.removeMany(List.of("app:1", "other")));
                    Collections.addAll(denied, () -> keys.iterate(start, 10), () -> keys.iterateInserted(start, 10));
                    denied.add(keys::count);
                    denied.add(() -> {
                        keys.multiPut(pairs);
                        return "written";
                    });
                    denied.add(() -> {
                        keys.setMode(Mode.ASYNCHRONOUS);
                        return "set";
                    });
                    for (Check.Call call : denied) {
                        Check.refused(refused, "user app may not", call);
                    }
                    Check.equal(false, keys.has("app:2"));
                }
                try (Connection look = new Connection(certificates.connect(server, "look.example"), shape)) {
                    Check.equal("v", look.keys.get("app:1"));
                    Check.equal(1L, look.keys.count());
                    Check.equal(1, look.keys.iterate(start, 10).getDataSize());
                    Check.refused(refused, "user look may not", () -> look.keys.remove("app:1"));
                }
                try (Connection ops = new Connection(certificates.connect(server, "ops.example"), shape)) {
                    ops.keys.setMode(Mode.ASYNCHRONOUS);
                    Check.equal(Mode.ASYNCHRONOUS, ops.keys.mode());
                    ops.keys.setMode(Mode.SAFE);
                    Check.equal(0, ops.keys.remove("app:1"));
                }
                try (Connection other = new Connection(certificates.connect(server, "other.example"), shape)) {
                    Check.refused(refused, "user other may not", () -> other.keys.get("app:1"));
                }
                try (Connection strange = new Connection(certificates.connect(server, "strange.example"), shape)) {
                    Check.refused(refused, "no user", () -> strange.keys.get("app:1"));
                }
                // Without a certificate there is no connection, and without TLS none either.
                isTurnedAway(() -> new Connection(certificates.connect(server, null), shape));
                isTurnedAway(() -> new Connection(server, shape));
            }
        }
    }

    /** What answers may be no Thrift, such as the alert of TLS to a client that does not speak it. */
    private static void isTurnedAway(Callable<Connection> connect) {
        Exception error = Check.thrown(() -> {
            try (Connection stranger = connect.call()) {
                return stranger.keys.get("app:1");
            }
        }, List.of(TTransportException.class, TProtocolException.class));
        Check.isNotLate(error);
    }
}
