package io.github.eskerstorage.scalardb;

import com.scalar.db.exception.storage.ExecutionException;
import com.scalar.db.exception.storage.RetriableExecutionException;
import esker.map.v1.MapGrpc;
import io.grpc.ConnectivityState;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;

/**
 * The connection to a server, and what its errors mean to ScalarDB.
 *
 * <p>Invariant: an error after which a mutation may have been applied is an {@link ExecutionException} and no
 * {@link RetriableExecutionException}; that one is thrown only when nothing was changed.
 */
final class Connection implements AutoCloseable {
  /** Longest message that the server takes, in bytes. */
  static final int MESSAGE_BYTES_MAX = 40 << 20;

  private static final Metadata.Key<String> ERROR =
      Metadata.Key.of("esker-error", Metadata.ASCII_STRING_MARSHALLER);
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final EskerConfig config;
  private final ManagedChannel channel;
  private final MapGrpc.MapBlockingStub stub;
  /** When a lost connection was last tried anew, by {@link System#nanoTime()}. */
  private final AtomicLong tried = new AtomicLong(System.nanoTime());

  Connection(EskerConfig config) {
    this.config = config;
    ManagedChannelBuilder<?> builder =
        config.tls
            ? Grpc.newChannelBuilderForAddress(config.host, config.port, credentials(config))
            : Grpc.newChannelBuilderForAddress(config.host, config.port, InsecureChannelCredentials.create());
    config.serverName.ifPresent(builder::overrideAuthority);
    channel =
        builder
            // Rows of the greatest length come in a message that is a little longer.
            .maxInboundMessageSize(MESSAGE_BYTES_MAX + (4 << 20))
            .keepAliveTime(60, TimeUnit.SECONDS)
            .build();
    MapGrpc.MapBlockingStub plain = MapGrpc.newBlockingStub(channel);
    if (config.token.isPresent()) {
      Metadata headers = new Metadata();
      headers.put(AUTHORIZATION, "Bearer " + config.token.get());
      plain = plain.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
    }
    stub = plain;
  }

  private static io.grpc.ChannelCredentials credentials(EskerConfig config) {
    try {
      TlsChannelCredentials.Builder builder = TlsChannelCredentials.newBuilder();
      if (config.caFile.isPresent()) {
        builder.trustManager(config.caFile.get());
      }
      if (config.certFile.isPresent() && config.keyFile.isPresent()) {
        builder.keyManager(config.certFile.get(), config.keyFile.get());
      }
      return builder.build();
    } catch (IOException e) {
      throw new UncheckedIOException("reading the TLS files of " + EskerConfig.PREFIX + "tls", e);
    }
  }

  /** Makes a call with the deadline of the configuration. */
  <T> T call(String what, Function<MapGrpc.MapBlockingStub, T> call) throws ExecutionException {
    try {
      return call.apply(stub());
    } catch (StatusRuntimeException e) {
      throw convert(what, e);
    }
  }

  /**
   * A stub with the deadline of the configuration. A connection that is lost is tried anew for it, however long the channel
   * would wait by itself (up to two minutes after a long outage), but not more often than the configuration says.
   */
  MapGrpc.MapBlockingStub stub() {
    if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
      long now = System.nanoTime();
      long last = tried.get();
      if (now - last >= TimeUnit.MILLISECONDS.toNanos(config.reconnectMs) && tried.compareAndSet(last, now)) {
        channel.resetConnectBackoff();
      }
    }
    return stub.withDeadlineAfter(config.timeoutMs, TimeUnit.MILLISECONDS);
  }

  /** Whether a stream that ended so may be gone on with: the connection was lost, or its time was over. */
  static boolean isInterruption(StatusRuntimeException error) {
    Status.Code code = error.getStatus().getCode();
    return nameOf(error).isEmpty() && (code == Status.Code.UNAVAILABLE || code == Status.Code.DEADLINE_EXCEEDED);
  }

  /** How long a stream that was interrupted is tried for, in milliseconds, and how long is waited in between. */
  long patienceMs() {
    return config.timeoutMs;
  }

  long reconnectMs() {
    return config.reconnectMs;
  }

  /** The name of the server's error, or nothing. */
  static String nameOf(Throwable error) {
    if (error instanceof StatusRuntimeException) {
      Metadata trailers = ((StatusRuntimeException) error).getTrailers();
      String name = trailers == null ? null : trailers.get(ERROR);
      return name == null ? "" : name;
    }
    return "";
  }

  /** What the server's error is to ScalarDB: thrown if it is the caller's mistake, else returned. */
  ExecutionException convert(String what, StatusRuntimeException error) {
    Status status = error.getStatus();
    String description = status.getDescription() == null ? status.getCode().toString() : status.getDescription();
    String message = what + " failed at " + config.host + ":" + config.port + ": " + description;
    switch (nameOf(error)) {
      case "invalid":
        throw new IllegalArgumentException(message, error);
      case "contended":
      case "busy":
        return new RetriableExecutionException(message, error);
      case "unsupported":
        throw new UnsupportedOperationException(message, error);
      default:
        // Whatever else it is, trying the same again at once is no help, or may do the same twice.
        boolean stranger = status.getCode() == Status.Code.UNAUTHENTICATED;
        boolean forbidden = status.getCode() == Status.Code.PERMISSION_DENIED;
        return new ExecutionException(message, error, stranger, forbidden, false, null);
    }
  }

  @Override
  public void close() {
    channel.shutdown();
    try {
      if (!channel.awaitTermination(5, TimeUnit.SECONDS)) {
        channel.shutdownNow();
      }
    } catch (InterruptedException e) {
      channel.shutdownNow();
      Thread.currentThread().interrupt();
    }
  }
}
