package io.github.eskerstorage.scalardb;

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

/**
 * The rows of one scan, as they come. The server reads ahead only as far as this is read, a message or two; closing the
 * scanner ends the scan there. For one thread at a time.
 */
final class EskerScanner extends AbstractScanner {
  private final Connection connection;
  private final Rows rows;
  private final Context.CancellableContext context;
  private final Iterator<MapOuterClass.ScanResponse> messages;
  private List<String> names = Collections.emptyList();
  private Iterator<MapOuterClass.Row> part = Collections.emptyIterator();
  private boolean closed;

  EskerScanner(Connection connection, MapOuterClass.ScanRequest request, Rows rows) throws ExecutionException {
    this.connection = connection;
    this.rows = rows;
    context = Context.ROOT.withCancellation();
    Context before = context.attach();
    try {
      messages = connection.streams().scan(request);
      // What is wrong with the request is to be said by scan(), not by the first row.
      advance();
    } catch (ExecutionException | RuntimeException e) {
      context.cancel(null);
      throw e;
    } finally {
      context.detach(before);
    }
  }

  /** Whether there is a row in {@code part}. */
  private boolean advance() throws ExecutionException {
    try {
      while (!part.hasNext()) {
        if (!messages.hasNext()) {
          return false;
        }
        MapOuterClass.ScanResponse message = messages.next();
        names = message.getColumnsList();
        part = message.getRowsList().iterator();
      }
      return true;
    } catch (StatusRuntimeException e) {
      throw connection.convert("scan", e);
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
