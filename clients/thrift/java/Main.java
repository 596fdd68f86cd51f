import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * Calls every method of the published services by the clients that Apache Thrift generates for Java, and has the
 * client that knows the ring find its way.
 *
 * <p>java -Desker.binary=ESKER Main FOLDER [PART]: runs the tests whose names hold PART, in folders of FOLDER. Ends
 * with 0 only if there are such tests and every check of theirs holds.
 */
public final class Main {
    private static final int TEST_SECONDS_MAX = 120;
    private static final int HANGS = 3;
    private static int failed;

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        String part = arguments.length > 1 ? arguments[1] : "";
        int ran = 0;
        for (Method method : tests(EveryShape.class)) {
            for (Shape shape : Shape.ALL) {
                ran += run(method.getName() + ", " + shape, part, folder, method, shape);
            }
        }
        for (Method method : tests(OddMessages.class)) {
            for (Shape shape : Shape.ALL.stream().filter(Shape::waits).toList()) {
                ran += run(method.getName() + ", " + shape, part, folder, method, shape);
            }
        }
        for (Class<?> of : List.of(OneServer.class, SeveralChains.class)) {
            for (Method method : tests(of)) {
                ran += run(method.getName(), part, folder, method, null);
            }
        }
        if (part.isEmpty()) {
            for (Shape shape : Shape.ALL) {
                if (!Connection.answered(shape).equals(Connection.methods())) {
                    failed++;
                    System.out.println("FAILED: in " + shape + " of " + Connection.methods() + " only "
                        + Connection.answered(shape) + " were answered");
                }
            }
        }
        System.out.println(ran + " tests of the Java client, " + Check.made() + " checks, " + failed + " failed");
        System.exit(failed == 0 && ran > 0 ? 0 : 1);
    }

    /** The tests of a class: what of it is not private and takes a folder. */
    private static List<Method> tests(Class<?> of) {
        List<Method> tests = new ArrayList<>(Arrays.asList(of.getDeclaredMethods()));
        tests.removeIf(test -> Modifier.isPrivate(test.getModifiers()) || test.isSynthetic());
        tests.removeIf(test -> test.getParameterCount() == 0 || test.getParameterTypes()[0] != Path.class);
        tests.sort(Comparator.comparing(Method::getName));
        return tests;
    }

    /** Runs a test in a folder of its own, and says whether it had to. */
    private static int run(String name, String part, Path within, Method test, Shape shape) throws IOException {
        if (!name.contains(part)) {
            return 0;
        }
        Path folder = Files.createTempDirectory(within, "test");
        ScheduledExecutorService clock = Executors.newSingleThreadScheduledExecutor();
        ScheduledFuture<?> late = clock.schedule(() -> hangs(name), TEST_SECONDS_MAX, TimeUnit.SECONDS);
        int before = Check.made();
        try {
            Object[] given = shape == null ? new Object[] {folder} : new Object[] {folder, shape};
            test.invoke(null, given);
            if (Check.made() == before) {
                throw new AssertionError("the test has checked nothing");
            }
        } catch (InvocationTargetException error) {
            fails(name, folder, error.getCause());
        } catch (IllegalAccessException | AssertionError error) {
            fails(name, folder, error);
        } finally {
            late.cancel(false);
            clock.shutdownNow();
            // Of this test none is left.
            Server.killAll();
            remove(folder);
        }
        return 1;
    }

    private static void fails(String name, Path folder, Throwable error) throws IOException {
        failed++;
        System.out.println("FAILED: " + name);
        error.printStackTrace(System.out);
        if (Files.exists(folder.resolve(Server.LOG))) {
            System.out.print(Files.readString(folder.resolve(Server.LOG)));
        }
    }

    private static void hangs(String name) {
        System.out.println("FAILED: " + name + ": not done after " + TEST_SECONDS_MAX + " s");
        Thread.getAllStackTraces().forEach((thread, stack) -> {
            System.out.println(thread);
            Arrays.stream(stack).forEach(frame -> System.out.println("    at " + frame));
        });
        Server.killAll();
        Runtime.getRuntime().halt(HANGS);
    }

    static void remove(Path folder) throws IOException {
        try (Stream<Path> files = Files.walk(folder)) {
            files.sorted(Comparator.reverseOrder()).forEach(file -> {
                try {
                    Files.delete(file);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            });
        }
    }
}
