import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.thrift.TApplicationException;
import org.apache.thrift.TException;
import vn.zdb.DataType;
import vn.zdb.EskerKeys;
import vn.zdb.Mode;
import vn.zdb.Page;
import vn.zdb.ZDBService;

/** What is tested in every shape, each time of a server of its own: every method, and every error of the IDL. */
final class EveryShape {
    private static final int BATCH_MAX = 4_096;
    private static final int KEY_BYTES_MAX = 4_024;
    static final int VALUE_BYTES_MAX = (16 << 20) - 16;
    private static final int MESSAGE_BYTES_MAX = 44 << 20;

    private EveryShape() {}

    static DataType pair(String key, String value) {
        return new DataType(key, value);
    }

    private static List<String> keysOf(List<DataType> pairs) {
        return pairs.stream().map(DataType::getKey).toList();
    }

    private static List<DataType> pairsOf(List<String> keys) {
        return keys.stream().map(key -> pair(key, "value of " + key)).toList();
    }

    static void methodsOfThePapersService(Path folder, Shape shape) throws Exception {
        try (Server server = new Server(folder); Connection connection = new Connection(server, shape)) {
            EskerKeys.Iface keys = connection.keys;
            if (shape.waits()) {
                ZDBService.Client papers = new ZDBService.Client(connection.protocol());
                Check.equal(0, papers.put("papers", "client"));
                Check.equal("client", papers.get("papers"));
                Check.equal(0, papers.remove("papers"));
            }
            // Empty, as long as can be, of two, three and four bytes in UTF-8, and with a zero.
            for (String key : List.of("", "k", "k".repeat(KEY_BYTES_MAX), "ключ", "€", "\uD83D\uDD11", "a\0b")) {
                Check.equal(false, keys.has(key));
                Check.refused(TApplicationException.MISSING_RESULT, "get", () -> keys.get(key));
                Check.equal(0, keys.put(key, "значение"));
                Check.equal("значение", keys.get(key));
                Check.equal(0, keys.put(key, ""));
                Check.equal("", keys.get(key));
                Check.equal(true, keys.has(key));
                Check.equal(0, keys.remove(key));
                Check.equal(1, keys.remove(key));
                Check.equal(false, keys.has(key));
            }
            keys.multiPut(List.of(pair("a", "1"), pair("b", "2"), pair("a", "3"), pair("c", "")));
            // As they were asked for, those that are missing left out, and what is asked twice there twice.
            List<DataType> found = keys.multiGet(List.of("c", "none", "b", "a", "b"));
            Check.equal(List.of(pair("c", ""), pair("b", "2"), pair("a", "3"), pair("b", "2")), found);
            keys.multiPut(List.of());
            Check.equal(List.of(), keys.multiGet(List.of()));
            Check.equal(List.of(), keys.multiGet(List.of("none")));
        }
    }

    static void methodsOfTheServiceThatExtendsIt(Path folder, Shape shape) throws Exception {
        try (Server server = new Server(folder); Connection connection = new Connection(server, shape)) {
            EskerKeys.Iface keys = connection.keys;
            Check.equal(0L, keys.count());
            Check.equal(true, keys.add("k", "1"));
            Check.equal(false, keys.add("k", "2"));
            Check.equal("1", keys.get("k"));
            Check.equal(true, keys.update("k", "3"));
            Check.equal(false, keys.update("none", "3"));
            Check.equal(false, keys.has("none"));
            Check.equal(false, keys.compareAndSet("k", "1", "4"));
            Check.equal("3", keys.get("k"));
            Check.equal(true, keys.compareAndSet("k", "3", "4"));
            Check.equal(false, keys.compareAndSet("k", null, "5"));
            Check.equal(true, keys.compareAndSet("new", null, ""));
            // An empty value is there, and is another than none.
            Check.equal(false, keys.compareAndSet("new", null, "5"));
            Check.equal(true, keys.compareAndSet("new", "", "5"));
            Check.equal(false, keys.compareAndSet("none", "", "5"));
            Check.equal(List.of(pair("k", "4"), pair("new", "5")), keys.multiGet(List.of("k", "new", "none")));
            Check.equal(2L, keys.count());
            Check.equal(2L, keys.removeMany(List.of("k", "k", "new", "none")));
            Check.equal(0L, keys.removeMany(List.of("k")));
            Check.equal(0L, keys.removeMany(List.of()));
            Check.equal(0L, keys.count());
            Check.equal(Mode.SAFE, keys.mode());
            keys.setMode(Mode.ASYNCHRONOUS);
            Check.equal(Mode.ASYNCHRONOUS, keys.mode());
            Check.equal(0, keys.put("k", "asynchronous"));
            Check.equal("asynchronous", keys.get("k"));
            keys.setMode(Mode.SAFE);
            Check.equal(Mode.SAFE, keys.mode());
        }
    }

    static void asManyKeysAsACallMayHave(Path folder, Shape shape) throws Exception {
        try (Server server = new Server(folder); Connection connection = new Connection(server, shape)) {
            EskerKeys.Iface keys = connection.keys;
            // In an order that is not that of the keys: 2,741 has no factor in common with their number.
            IntStream numbers = IntStream.range(0, BATCH_MAX).map(n -> n * 2_741 % BATCH_MAX);
            List<String> most = numbers.mapToObj(n -> String.format("%04d", n)).toList();
            keys.multiPut(pairsOf(most));
            Check.equal(pairsOf(most), keys.multiGet(most));
            Check.equal((long) BATCH_MAX, keys.count());
            List<String> more = new ArrayList<>(most);
            more.add("more");
            Check.refused(TApplicationException.UNKNOWN, "BATCH_MAX", () -> keys.multiGet(more));
            Check.refused(TApplicationException.UNKNOWN, "BATCH_MAX", () -> keys.removeMany(more));
            Check.refused(TApplicationException.UNKNOWN, "BATCH_MAX", () -> {
                keys.multiPut(pairsOf(more));
                return "written";
            });
            Check.equal((long) BATCH_MAX, keys.count());
            // Those of one call were written in its order; then again, in parts from the last to the first.
            List<String> sorted = most.stream().sorted().toList();
            Check.equal(most, walked(keys::iterateInserted, 1_000));
            List<String> written = new ArrayList<>();
            for (int at = BATCH_MAX - 1_024; at >= 0; at -= 1_024) {
                List<String> part = most.subList(at, at + 1_024);
                keys.multiPut(pairsOf(part));
                written.addAll(part);
            }
            keys.put(written.get(0), "again");
            Collections.rotate(written, -1);
            Check.equal(written, walked(keys::iterateInserted, 1_000));
            Check.equal(written, walked(keys::iterateInserted, 0));
            Check.equal(sorted, walked(keys::iterate, 1_000));
            Check.equal(sorted, walked(keys::iterate, 0));
            Check.equal(sorted.subList(0, 1), keysOf(keys.iterate(ByteBuffer.allocate(0), 1).getData()));
            Check.equal((long) BATCH_MAX, keys.removeMany(most));
            Check.equal(0L, keys.count());
            Page none = keys.iterate(ByteBuffer.allocate(0), 0);
            Check.equal(List.of(), none.getData());
            Check.equal(false, none.isSetCursor());
        }
    }

    /** A method that gives pages. */
    private interface Pages {
        Page next(ByteBuffer cursor, int limit) throws TException;
    }

    /** The keys of all pages, of which none has more pairs than it may, and one at least has as many. */
    private static List<String> walked(Pages method, int limit) throws TException {
        List<String> found = new ArrayList<>();
        int most = 0;
        for (ByteBuffer cursor = ByteBuffer.allocate(0); cursor != null;) {
            Page page = method.next(cursor, limit);
            most = Math.max(most, page.getDataSize());
            found.addAll(keysOf(page.getData()));
            cursor = page.isSetCursor() ? ByteBuffer.wrap(page.getCursor()) : null;
        }
        Check.equal(limit == 0 ? 100 : limit, most);
        return found;
    }

    static void intKeysAreDecimal(Path folder, Shape shape) throws Exception {
        try (Server server = new Server(folder, "--thrift-namespace", "users:int");
                Connection connection = new Connection(server, shape)) {
            EskerKeys.Iface keys = connection.keys;
            String largest = "18446744073709551615";
            List<String> numbers = List.of("0", "1", "9", "10", "65535", "65536", "9223372036854775808", largest);
            List<String> backwards = new ArrayList<>(numbers);
            Collections.reverse(backwards);
            keys.multiPut(pairsOf(backwards));
            Check.equal(pairsOf(backwards), keys.multiGet(backwards));
            for (String key : List.of("ada", "", "-1", "07", "00", "+1", "1.0", " 1", "١", "18446744073709551616")) {
                String named = "\"" + key + "\"";
                Check.refused(TApplicationException.UNKNOWN, named, () -> keys.get(key));
                Check.refused(TApplicationException.UNKNOWN, named, () -> keys.has(key));
                Check.refused(TApplicationException.UNKNOWN, named, () -> keys.put(key, "v"));
                Check.refused(TApplicationException.UNKNOWN, named, () -> keys.remove(key));
                Check.refused(TApplicationException.UNKNOWN, named, () -> keys.add(key, "v"));
                Check.refused(TApplicationException.UNKNOWN, named, () -> keys.update(key, "v"));
                Check.refused(TApplicationException.UNKNOWN, named, () -> keys.compareAndSet(key, "v", "w"));
                Check.refused(TApplicationException.UNKNOWN, named, () -> keys.multiGet(List.of("1", key)));
                Check.refused(TApplicationException.UNKNOWN, named, () -> keys.removeMany(List.of("1", key)));
                Check.refused(TApplicationException.UNKNOWN, named, () -> {
                    keys.multiPut(List.of(pair("1", "changed"), pair(key, "v")));
                    return "written";
                });
            }
            Check.equal("value of 1", keys.get("1"));
            Check.refused(TApplicationException.MISSING_RESULT, "get", () -> keys.get("2"));
            // In the order of numbers, and in that of writing.
            List<String> written = new ArrayList<>(numbers);
            Collections.reverse(written);
            Check.equal(numbers, walked(keys::iterate, 5));
            Check.equal(written, walked(keys::iterateInserted, 5));
            Check.equal(true, keys.compareAndSet("9", "value of 9", "new"));
            written.remove("9");
            written.add("9");
            Check.equal(written, walked(keys::iterateInserted, 5));
            Check.equal(true, keys.add("2", "new"));
            Check.equal(true, keys.update("2", "newer"));
            Check.equal(9L, keys.count());
            Check.equal(8L, keys.removeMany(numbers));
            Check.equal(0, keys.remove("2"));
            // As many as a call may have, over several of the ranges that the namespace is kept in.
            List<String> most = IntStream.range(0, BATCH_MAX).mapToObj(n -> String.valueOf(n * 48L)).toList();
            keys.multiPut(pairsOf(most));
            Check.equal(pairsOf(most), keys.multiGet(most));
            Check.equal((long) BATCH_MAX, keys.removeMany(most));
        }
    }

    static void limitsAreNamed(Path folder, Shape shape) throws Exception {
        try (Server server = new Server(folder); Connection connection = new Connection(server, shape)) {
            EskerKeys.Iface keys = connection.keys;
            int refused = TApplicationException.UNKNOWN;
            String largest = "v".repeat(VALUE_BYTES_MAX);
            Check.equal(0, keys.put("large", largest));
            Check.equal(largest, keys.get("large"));
            Check.refused(refused, "ANSWER_BYTES_MAX", () -> keys.multiGet(Collections.nCopies(5, "large")));
            Check.refused(refused, "VALUE_BYTES_MAX", () -> keys.put("large", largest + "v"));
            Check.refused(refused, "VALUE_BYTES_MAX", () -> keys.add("larger", largest + "v"));
            Check.refused(refused, "KEY_BYTES_MAX", () -> keys.get("k".repeat(KEY_BYTES_MAX + 1)));
            Check.refused(refused, "KEY_BYTES_MAX", () -> keys.put("k".repeat(KEY_BYTES_MAX + 1), "v"));
            Check.equal(0, keys.put("small", ""));
            // A page ends behind the pair with which it holds 4 MiB.
            Page first = keys.iterate(ByteBuffer.allocate(0), 1_000);
            Check.equal(List.of("large"), keysOf(first.getData()));
            Page second = keys.iterate(ByteBuffer.wrap(first.getCursor()), 1_000);
            Check.equal(List.of("small"), keysOf(second.getData()));
            Check.equal(false, second.isSetCursor());
            for (int limit : new int[] {1_001, -1, Integer.MAX_VALUE, Integer.MIN_VALUE}) {
                Check.refused(refused, "PAGE_MAX = 1000", () -> keys.iterate(ByteBuffer.allocate(0), limit));
                Check.refused(refused, "PAGE_MAX = 1000", () -> keys.iterateInserted(ByteBuffer.allocate(0), limit));
            }
            // A cursor of nothing, and one of the other order.
            ByteBuffer strange = ByteBuffer.wrap("nonsense".getBytes(StandardCharsets.UTF_8));
            Check.refused(refused, "cursor", () -> keys.iterate(strange, 10));
            Check.refused(refused, "cursor", () -> keys.iterateInserted(strange, 10));
            ByteBuffer ofKeys = ByteBuffer.wrap(first.getCursor());
            Check.refused(refused, "cursor", () -> keys.iterateInserted(ofKeys, 10));
            // No more of the connection can be read after this.
            String message = "v".repeat(MESSAGE_BYTES_MAX + 1);
            int unreadable = TApplicationException.PROTOCOL_ERROR;
            Check.refused(unreadable, "MESSAGE_BYTES_MAX", () -> keys.put("large", message));
            if (shape.waits()) {
                Check.closed(() -> connection.keys.has("k"));
            }
            try (Connection next = new Connection(server, shape)) {
                Check.equal(2L, next.keys.count());
                Check.equal(2L, next.keys.removeMany(List.of("large", "small")));
            }
        }
    }

    static void argumentsThatAreMissingAreNamed(Path folder, Shape shape) throws Exception {
        try (Server server = new Server(folder); Connection connection = new Connection(server, shape)) {
            EskerKeys.Iface keys = connection.keys;
            int wrong = TApplicationException.PROTOCOL_ERROR;
            Check.refused(wrong, "get: field 1 (key)", () -> keys.get(null));
            Check.refused(wrong, "has: field 1 (key)", () -> keys.has(null));
            Check.refused(wrong, "remove: field 1 (key)", () -> keys.remove(null));
            Check.refused(wrong, "put: field 1 (key)", () -> keys.put(null, "v"));
            Check.refused(wrong, "put: field 2 (value)", () -> keys.put("k", null));
            Check.refused(wrong, "add: field 2 (value)", () -> keys.add("k", null));
            Check.refused(wrong, "update: field 2 (value)", () -> keys.update("k", null));
            Check.refused(wrong, "compareAndSet: field 3 (value)", () -> keys.compareAndSet("k", null, null));
            Check.refused(wrong, "multiGet: field 1 (keys)", () -> keys.multiGet(null));
            Check.refused(wrong, "removeMany: field 1 (keys)", () -> keys.removeMany(null));
            Check.refused(wrong, "multiPut: field 1 (data)", () -> {
                keys.multiPut(null);
                return "written";
            });
            Check.refused(wrong, "setMode: field 1 (mode)", () -> {
                keys.setMode(null);
                return "set";
            });
            // Of pages it is the first.
            keys.put("k", "v");
            Check.equal(List.of(pair("k", "v")), keys.iterate(null, 0).getData());
            Check.equal(List.of(pair("k", "v")), keys.iterateInserted(null, 0).getData());
            Check.equal(1L, keys.count());
        }
    }
}
