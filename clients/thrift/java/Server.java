import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A process of `esker serve --thrift`, and where it listens. */
final class Server implements AutoCloseable {
    /** What a server logs, in its folder. */
    static final String LOG = "server.log";
    private static final Pattern TOLD = Pattern.compile("thrift +thrifts?://127\\.0\\.0\\.1:(\\d+) .*");
    private static final int END_SECONDS_MAX = 30;
    private static final Queue<Process> STARTED = new ConcurrentLinkedQueue<>();

    static {
        // However this program ends, no server outlives it.
        Runtime.getRuntime().addShutdownHook(new Thread(Server::killAll));
    }

    private final Process process;
    private final BufferedReader printed;
    private int port;

    /** Starts one in this folder, on its store of 4 GiB or on the one that the arguments name. */
    Server(Path folder, String... arguments) throws IOException {
        List<String> command = new ArrayList<>(List.of(System.getProperty("esker.binary"), "serve", "--no-resp"));
        command.addAll(List.of("--log", "warn"));
        List<String> given = Arrays.asList(arguments);
        if (!given.contains("--store")) {
            command.addAll(List.of("--store", "data?size=4g"));
        }
        if (!given.contains("--thrift-unix-socket")) {
            command.addAll(List.of("--thrift", "127.0.0.1:0"));
        }
        command.addAll(given);
        ProcessBuilder builder = new ProcessBuilder(command).directory(folder.toFile());
        builder.environment().keySet().removeIf(name -> name.startsWith("ESKER_"));
        builder.redirectError(ProcessBuilder.Redirect.appendTo(folder.resolve(LOG).toFile()));
        process = builder.start();
        started(process);
        printed = process.inputReader(StandardCharsets.UTF_8);
        List<String> lines = new ArrayList<>();
        for (String line = printed.readLine(); line != null; line = printed.readLine()) {
            lines.add(line);
            if (line.startsWith("thrift ")) {
                Matcher address = TOLD.matcher(line);
                port = address.matches() ? Integer.parseInt(address.group(1)) : 0;
                return;
            }
        }
        throw new IOException("the server ended: " + String.join("\n", lines));
    }

    /** Has a process end with those of this class. */
    static void started(Process process) {
        STARTED.add(process);
    }

    int port() {
        return port;
    }

    /** Tells it to stop, which it does in good order. */
    @Override
    public void close() throws IOException {
        process.destroy();
        Check.equal(0, ended());
    }

    /** Kills it with SIGKILL. */
    void kill() throws IOException {
        process.destroyForcibly();
        ended();
    }

    private int ended() throws IOException {
        try {
            if (!process.waitFor(END_SECONDS_MAX, TimeUnit.SECONDS)) {
                throw new IOException("the server has not ended after " + END_SECONDS_MAX + " s");
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IOException(error);
        } finally {
            process.destroyForcibly();
            printed.close();
        }
        return process.exitValue();
    }

    /** Kills all that still run, and waits until they are gone. */
    static void killAll() {
        STARTED.forEach(process -> process.destroyForcibly().onExit().join());
        STARTED.clear();
    }
}
