package io.github.eskerstorage.scalardb;

import com.scalar.db.api.Delete;
import com.scalar.db.api.Get;
import com.scalar.db.api.Mutation;
import com.scalar.db.api.Operation;
import com.scalar.db.api.Put;
import com.scalar.db.api.Result;
import com.scalar.db.api.Scan;
import com.scalar.db.api.Scanner;
import com.scalar.db.api.TableMetadata;
import com.scalar.db.common.AbstractDistributedStorage;
import com.scalar.db.common.CoreError;
import com.scalar.db.common.StorageInfoProvider;
import com.scalar.db.common.TableMetadataManager;
import com.scalar.db.common.checker.OperationChecker;
import com.scalar.db.config.DatabaseConfig;
import com.scalar.db.exception.storage.ExecutionException;
import com.scalar.db.exception.storage.NoMutationException;
import com.scalar.db.util.ScalarDbUtils;
import esker.map.v1.MapOuterClass;
import java.util.Collections;
import java.util.List;
import java.util.Optional;

/**
 * Reads and writes of ScalarDB on the map of an Esker server.
 *
 * <p>operation → checker (against the table's metadata, which is cached) → request → server, which evaluates conditions,
 * filters and orders → result
 *
 * <p>Invariants: a list of mutations is one request and so one commit, whichever tables it is over; it is durable when the
 * call returns. One whose condition does not hold is a {@link NoMutationException}, one that others were faster than time
 * and again a {@link com.scalar.db.exception.storage.RetriableExecutionException}; neither changed anything, and nor did one
 * whose cause is an {@link IllegalArgumentException}: a value or a list that is larger than the server takes. After any
 * other {@link ExecutionException} it may have been applied.
 */
public final class EskerStorage extends AbstractDistributedStorage {
  private final Connection connection;
  private final TableMetadataManager metadata;
  private final OperationChecker checker;

  /**
   * Connects when the first call is made.
   *
   * @param config ScalarDB's properties
   * @throws IllegalArgumentException if a property makes no sense
   */
  public EskerStorage(DatabaseConfig config) {
    super(config);
    EskerConfig esker = new EskerConfig(config);
    connection = new Connection(esker);
    EskerAdmin admin = new EskerAdmin(esker, connection);
    metadata = new TableMetadataManager(admin, config.getMetadataCacheExpirationTimeSecs());
    checker = new OperationChecker(config, metadata, new StorageInfoProvider(admin));
  }

  /** The checker has found it, but it may be gone since. */
  private TableMetadata tableOf(Operation operation) throws ExecutionException {
    TableMetadata table = metadata.getTableMetadata(operation);
    if (table == null) {
      throw new IllegalArgumentException(
          CoreError.TABLE_NOT_FOUND.buildMessage(operation.forFullTableName().orElse("?")));
    }
    return table;
  }

  @Override
  public Optional<Result> get(Get given) throws ExecutionException {
    Get get = copyAndSetTargetToIfNot(given);
    checker.check(get);
    TableMetadata table = tableOf(get);
    Rows rows = new Rows(table, get.getProjections());
    if (!ScalarDbUtils.isSecondaryIndexSpecified(get, table)) {
      MapOuterClass.GetRequest request = Requests.get(get);
      MapOuterClass.GetResponse response = connection.call("get", stub -> stub.get(request));
      return response.hasRecord() ? Optional.of(rows.result(response.getRecord())) : Optional.empty();
    }
    // Two are enough to see that it is not one.
    MapOuterClass.ScanRequest request = Requests.scan(get, table).toBuilder().setLimit(2).build();
    try (EskerScanner scanner = new EskerScanner(connection, request, rows)) {
      Optional<Result> result = scanner.one();
      if (result.isPresent() && scanner.one().isPresent()) {
        throw new IllegalArgumentException(
            CoreError.GET_OPERATION_USED_FOR_NON_EXACT_MATCH_SELECTION.buildMessage(get));
      }
      return result;
    }
  }

  @Override
  public Scanner scan(Scan given) throws ExecutionException {
    Scan scan = copyAndSetTargetToIfNot(given);
    checker.check(scan);
    TableMetadata table = tableOf(scan);
    return new EskerScanner(connection, Requests.scan(scan, table), new Rows(table, scan.getProjections()));
  }

  @Override
  public void put(Put put) throws ExecutionException {
    Put one = copyAndSetTargetToIfNot(put);
    checker.check(one);
    send(Collections.singletonList(one));
  }

  @Override
  public void put(List<Put> puts) throws ExecutionException {
    mutate(puts);
  }

  @Override
  public void delete(Delete delete) throws ExecutionException {
    Delete one = copyAndSetTargetToIfNot(delete);
    checker.check(one);
    send(Collections.singletonList(one));
  }

  @Override
  public void delete(List<Delete> deletes) throws ExecutionException {
    mutate(deletes);
  }

  @Override
  public void mutate(List<? extends Mutation> mutations) throws ExecutionException {
    if (mutations.isEmpty()) {
      throw new IllegalArgumentException(CoreError.EMPTY_MUTATIONS_SPECIFIED.buildMessage());
    }
    List<? extends Mutation> all = copyAndSetTargetToIfNot(mutations);
    checker.check(all);
    send(all);
  }

  private void send(List<? extends Mutation> mutations) throws ExecutionException {
    MapOuterClass.MutateResponse response;
    try {
      MapOuterClass.MutateRequest request = Requests.mutate(mutations);
      if (request.getSerializedSize() > Connection.MESSAGE_BYTES_MAX) {
        throw new IllegalArgumentException(
            String.format(
                "%d mutations of %d bytes together: at most %d bytes go at once",
                mutations.size(), request.getSerializedSize(), Connection.MESSAGE_BYTES_MAX));
      }
      response = connection.call("mutate", stub -> stub.mutate(request));
    } catch (IllegalArgumentException e) {
      // Nothing was applied. A transaction that has rows prepared elsewhere takes them back after this kind only.
      throw new ExecutionException(e.getMessage(), e, false, false, false, null);
    }
    if (response.hasConditionFailed()) {
      throw new NoMutationException(CoreError.NO_MUTATION_APPLIED.buildMessage(), mutations);
    }
    if (!response.hasApplied()) {
      throw new ExecutionException("the server's answer does not say whether the mutations were applied");
    }
  }

  @Override
  public void close() {
    connection.close();
  }
}
