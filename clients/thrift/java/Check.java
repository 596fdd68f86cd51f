import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.thrift.TApplicationException;
import org.apache.thrift.transport.TTransportException;

/** What has to hold. A check that does not hold throws, and ends its test. */
final class Check {
    private static final AtomicInteger MADE = new AtomicInteger();

    private Check() {}

    /** Something that may throw. */
    interface Call {
        Object make() throws Exception;
    }

    /** How many held so far. */
    static int made() {
        return MADE.get();
    }

    static void holds(boolean does, String what) {
        if (!does) {
            throw new AssertionError("it does not hold that " + what);
        }
        MADE.incrementAndGet();
    }

    static void equal(Object expected, Object found) {
        if (!Objects.deepEquals(expected, found)) {
            throw new AssertionError("expected " + shown(expected) + ", found " + shown(found));
        }
        MADE.incrementAndGet();
    }

    /** The call ends in an exception of one of these classes, which is returned. */
    static Exception thrown(Call call, List<Class<? extends Exception>> classes) {
        Object given;
        try {
            given = call.make();
        } catch (Exception error) {
            if (classes.stream().noneMatch(known -> known.isInstance(error))) {
                throw new AssertionError("expected one of " + classes, error);
            }
            MADE.incrementAndGet();
            return error;
        }
        throw new AssertionError("expected one of " + classes + ", found " + shown(given));
    }

    /** The call is answered by an exception of this kind of TApplicationException, whose message holds this text. */
    static void refused(int kind, String text, Call call) {
        TApplicationException error = (TApplicationException) thrown(call, List.of(TApplicationException.class));
        if (error.getType() != kind || !String.valueOf(error.getMessage()).contains(text)) {
            String expected = "expected kind " + kind + " with " + text + ", found kind " + error.getType();
            throw new AssertionError(expected + ": " + error.getMessage(), error);
        }
        MADE.incrementAndGet();
    }

    /** The server has closed the connection of the call. */
    static void closed(Call call) {
        isNotLate(thrown(call, List.of(TTransportException.class)));
    }

    /** The error is not that an answer did not come in time. */
    static void isNotLate(Exception error) {
        boolean late = error instanceof TTransportException in && in.getType() == TTransportException.TIMED_OUT;
        holds(!late, "the connection is closed: " + error);
    }

    private static String shown(Object value) {
        String text = value instanceof Object[] array ? Arrays.deepToString(array) : String.valueOf(value);
        return text.length() <= 500 ? text : text.substring(0, 500) + "... (" + text.length() + " characters)";
    }
}
