package io.github.eskerstorage.scalardb;

import com.google.protobuf.ByteString;
import com.scalar.db.api.Result;
import com.scalar.db.common.AbstractScanner;
import com.scalar.db.exception.storage.ExecutionException;
import esker.map.v1.MapOuterClass;
import io.grpc.Context;
import io.grpc.StatusRuntimeException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;

/**
 * The rows of one scan, as they come. The server reads ahead only as far as this is read, a message or two; closing the
 * scanner ends the scan there. For one thread at a time.
 *
 * <p>Each message carries a token that outlives connections and the server: a scan whose connection is lost, or whose time
 * is over while its reader takes its own, goes on behind the last message. One that gets no further for the time of the
 * configuration fails.
 */
final class EskerScanner extends AbstractScanner {
  private final Connection connection;
  private final Rows rows;
  private final MapOuterClass.ScanRequest request;
  private Context.CancellableContext context;
  private Iterator<MapOuterClass.ScanResponse> messages;
  private List<String> names = Collections.emptyList();
  private Iterator<MapOuterClass.Row> part = Collections.emptyIterator();
  /** Of the last message; empty before the first, and where the server gives none. */
  private ByteString token = ByteString.EMPTY;
  private long taken;
  private boolean begun;
  private boolean closed;

  EskerScanner(Connection connection, MapOuterClass.ScanRequest request, Rows rows) throws ExecutionException {
    this.connection = connection;
    this.rows = rows;
    this.request = request;
    open();
    // What is wrong with the request is to be said by scan(), not by the first row.
    try {
      advance();
    } catch (ExecutionException | RuntimeException e) {
      context.cancel(null);
      throw e;
    }
  }

  /** Begins the scan, or goes on with it behind the last message. */
  private void open() {
    MapOuterClass.ScanRequest.Builder next = request.toBuilder();
    if (!token.isEmpty()) {
      next.setPageToken(token);
      if (request.getLimit() > 0) {
        next.setLimit(request.getLimit() - taken);
      }
    }
    context = Context.ROOT.withCancellation();
    Context before = context.attach();
    try {
      messages = connection.stub().scan(next.build());
    } finally {
      context.detach(before);
    }
  }

  /** Whether there is a row in {@code part}. */
  private boolean advance() throws ExecutionException {
    long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(connection.patienceMs());
    while (!part.hasNext()) {
      try {
        if (!messages.hasNext()) {
          return false;
        }
        MapOuterClass.ScanResponse message = messages.next();
        names = message.getColumnsList();
        part = message.getRowsList().iterator();
        token = message.getNextPageToken();
        taken += message.getRowsCount();
        begun = true;
      } catch (StatusRuntimeException e) {
        boolean last = begun && (token.isEmpty() || request.getLimit() > 0 && taken >= request.getLimit());
        if (last && request.getOrderByCount() == 0) {
          // Nothing is left to scan; only the end of the stream was lost.
          return false;
        }
        // A sorted scan has no token: what came of it cannot be gone on with.
        if (!begun || token.isEmpty() || !Connection.isInterruption(e) || System.nanoTime() > until) {
          throw connection.convert("scan", e);
        }
        context.cancel(null);
        pause(e);
        open();
      }
    }
    return true;
  }

  private void pause(StatusRuntimeException cause) throws ExecutionException {
    try {
      Thread.sleep(connection.reconnectMs());
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw connection.convert("scan", cause);
    }
  }

  @Override
  public Optional<Result> one() throws ExecutionException {
    if (closed) {
      throw new IllegalStateException("this scanner was closed");
    }
    return advance() ? Optional.of(rows.result(names, part.next())) : Optional.empty();
  }

  @Override
  public List<Result> all() throws ExecutionException {
    List<Result> results = new ArrayList<>();
    for (Optional<Result> one = one(); one.isPresent(); one = one()) {
      results.add(one.get());
    }
    return results;
  }

  @Override
  public void close() {
    closed = true;
    context.cancel(null);
  }
}
