package io.github.eskerstorage.scalardb;

import com.scalar.db.config.DatabaseConfig;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;

/**
 * An `esker serve` on a free port, with a store in a folder of its own that goes with it.
 *
 * <p>{@link #properties} gives each suite one: it is started when a suite's name is first seen, and stopped when another's
 * is, so that no suite sees what an earlier one left. The binary is the one of the system property {@code esker.binary}.
 */
final class EskerServer implements AutoCloseable {
  private static final String ADDRESS_LINE = "grpc ";
  private static final long START_SECONDS_MAX = 30;

  private static String suite;
  private static EskerServer running;

  private final Path folder;
  private final List<String> arguments;
  private final String address;
  private volatile Process process;

  EskerServer(String... arguments) {
    this.arguments = List.of(arguments);
    try {
      folder = Files.createTempDirectory("esker-scalardb");
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    Runtime.getRuntime().addShutdownHook(new Thread(this::close));
    address = start("127.0.0.1:0");
  }

  /** Ends the server as a power cut would, and starts it again under the same address. */
  void killAndStart() throws InterruptedException {
    process.destroyForcibly().waitFor();
    start(address);
  }

  void kill() throws InterruptedException {
    process.destroyForcibly().waitFor();
  }

  private String start(String at) {
    try {
      List<String> command = new ArrayList<>();
      command.add(binary());
      // Space is taken only as it is written.
      command.addAll(List.of("serve", "--listen", "127.0.0.1:0", "--store", folder.resolve("data") + "?size=16g"));
      command.addAll(List.of("--grpc", at));
      command.addAll(arguments);
      ProcessBuilder builder = new ProcessBuilder(command);
      builder.environment().remove("ESKER_CONFIG");
      builder.environment().put("RUST_LOG", "warn");
      builder.redirectError(ProcessBuilder.Redirect.appendTo(log()));
      process = builder.start();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    CompletableFuture<String> line = new CompletableFuture<>();
    Process started = process;
    Thread reader = new Thread(() -> read(started, line), "output of esker");
    reader.setDaemon(true);
    reader.start();
    try {
      return line.get(START_SECONDS_MAX, TimeUnit.SECONDS);
    } catch (InterruptedException | ExecutionException | TimeoutException e) {
      close();
      throw new IllegalStateException("esker serve did not say where its gRPC is; see " + log(), e);
    }
  }

  private static String binary() {
    File binary = new File(System.getProperty("esker.binary", "../../target/release/esker"));
    if (!binary.canExecute()) {
      throw new IllegalStateException(
          binary + " is not there: build it with `cargo build --release -p esker-cli`, or name it by -Desker.binary=PATH");
    }
    return binary.getAbsolutePath();
  }

  private static File log() {
    return new File("target", "esker-serve.log").getAbsoluteFile();
  }

  /** To the end of the output, lest the server waits for its reader. */
  private static void read(Process process, CompletableFuture<String> found) {
    try (BufferedReader output =
        new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
      for (String line = output.readLine(); line != null; line = output.readLine()) {
        if (line.startsWith(ADDRESS_LINE)) {
          String url = line.substring(ADDRESS_LINE.length()).trim().split(" ")[0];
          found.complete(url.substring(url.indexOf("://") + "://".length()));
        }
      }
    } catch (IOException e) {
      // It has ended.
    }
    found.completeExceptionally(new IOException("it ended before"));
  }

  String address() {
    return address;
  }

  Properties properties() {
    Properties properties = new Properties();
    properties.setProperty(DatabaseConfig.STORAGE, EskerConfig.STORAGE_NAME);
    properties.setProperty(DatabaseConfig.CONTACT_POINTS, address);
    properties.setProperty(DatabaseConfig.CROSS_PARTITION_SCAN, "true");
    properties.setProperty(DatabaseConfig.CROSS_PARTITION_SCAN_FILTERING, "true");
    properties.setProperty(DatabaseConfig.CROSS_PARTITION_SCAN_ORDERING, "true");
    // As the suites wait one second for it.
    properties.setProperty(DatabaseConfig.METADATA_CACHE_EXPIRATION_TIME_SECS, "1");
    return properties;
  }

  /** Properties for the server of a suite. */
  static synchronized Properties properties(String name) {
    if (!Objects.equals(suite, name)) {
      if (running != null) {
        running.close();
      }
      running = new EskerServer();
      suite = name;
    }
    return running.properties();
  }

  @Override
  public void close() {
    Process process = this.process;
    if (process == null) {
      return;
    }
    process.destroy();
    try {
      if (!process.waitFor(20, TimeUnit.SECONDS)) {
        process.destroyForcibly().waitFor();
      }
    } catch (InterruptedException e) {
      process.destroyForcibly();
      Thread.currentThread().interrupt();
    }
    if (!Files.exists(folder)) {
      return;
    }
    try (Stream<Path> all = Files.walk(folder)) {
      all.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }
}
