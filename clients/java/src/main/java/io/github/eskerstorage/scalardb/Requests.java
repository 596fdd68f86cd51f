package io.github.eskerstorage.scalardb;

import com.scalar.db.api.Consistency;
import com.scalar.db.api.Delete;
import com.scalar.db.api.Get;
import com.scalar.db.api.Mutation;
import com.scalar.db.api.Operation;
import com.scalar.db.api.Put;
import com.scalar.db.api.Scan;
import com.scalar.db.api.ScanAll;
import com.scalar.db.api.Selection;
import com.scalar.db.api.TableMetadata;
import com.scalar.db.io.Column;
import com.scalar.db.io.Key;
import com.scalar.db.util.ScalarDbUtils;
import esker.map.v1.MapOuterClass;
import java.util.LinkedHashSet;
import java.util.List;

/**
 * ScalarDB's operations, which the operation checker has let through, as requests.
 *
 * <p>A start is the bound of low values and an end that of high ones, whichever way the clustering key is sorted.
 */
final class Requests {
  private Requests() {}

  static MapOuterClass.Table table(String namespace, String table) {
    return MapOuterClass.Table.newBuilder().setNamespace(namespace).setTable(table).build();
  }

  private static MapOuterClass.Table table(Operation operation) {
    return table(operation.forNamespace().orElseThrow(), operation.forTable().orElseThrow());
  }

  private static MapOuterClass.Consistency consistency(Operation operation) {
    return operation.getConsistency() == Consistency.EVENTUAL
        ? MapOuterClass.Consistency.CONSISTENCY_EVENTUAL
        : MapOuterClass.Consistency.CONSISTENCY_STRONG;
  }

  /** A get by its whole key. */
  static MapOuterClass.GetRequest get(Get get) {
    MapOuterClass.GetRequest.Builder request =
        MapOuterClass.GetRequest.newBuilder()
            .setTable(table(get))
            .addAllKey(Values.columns(get.getPartitionKey()))
            .addAllColumns(get.getProjections())
            .setConsistency(consistency(get));
    get.getClusteringKey().ifPresent(key -> request.addAllKey(Values.columns(key)));
    if (!get.getConjunctions().isEmpty()) {
      request.setFilter(Filters.any(get.getConjunctions()));
    }
    return request.build();
  }

  /** A scan, or a get by an index. */
  static MapOuterClass.ScanRequest scan(Selection selection, TableMetadata metadata) {
    MapOuterClass.ScanRequest.Builder request =
        MapOuterClass.ScanRequest.newBuilder()
            .setTable(table(selection))
            .addAllColumns(selection.getProjections())
            .setConsistency(consistency(selection));
    if (!selection.getConjunctions().isEmpty()) {
      request.setFilter(Filters.any(selection.getConjunctions()));
    }
    if (selection instanceof ScanAll) {
      request.setAll(MapOuterClass.AllRows.getDefaultInstance());
      ((ScanAll) selection).getOrderings().forEach(ordering -> request.addOrderBy(orderBy(ordering)));
    } else if (ScalarDbUtils.isSecondaryIndexSpecified(selection, metadata)) {
      overIndex(request, selection.getPartitionKey().getColumns().get(0), metadata);
    } else {
      Scan scan = (Scan) selection;
      MapOuterClass.PartitionRange.Builder range =
          MapOuterClass.PartitionRange.newBuilder().addAllKey(Values.columns(scan.getPartitionKey()));
      scan.getStartClusteringKey().ifPresent(key -> range.setLow(bound(key, scan.getStartInclusive())));
      scan.getEndClusteringKey().ifPresent(key -> range.setHigh(bound(key, scan.getEndInclusive())));
      request.setPartition(range).setReverse(reversed(scan.getOrderings(), metadata));
    }
    if (selection instanceof Scan) {
      request.setLimit(Math.max(0, ((Scan) selection).getLimit()));
    }
    return request.build();
  }

  /**
   * Rows by an indexed column. Esker's indexes are over columns outside the key, so one that ScalarDB has over a column of
   * the key is a partition, if that column is the partition key, and otherwise a filter over the table.
   */
  private static void overIndex(
      MapOuterClass.ScanRequest.Builder request, Column<?> column, TableMetadata metadata) {
    LinkedHashSet<String> partitionKey = metadata.getPartitionKeyNames();
    boolean ofPartitionKey = partitionKey.contains(column.getName());
    if (ofPartitionKey && partitionKey.size() == 1) {
      request.setPartition(MapOuterClass.PartitionRange.newBuilder().addKey(Values.column(column)));
    } else if (ofPartitionKey || metadata.getClusteringKeyNames().contains(column.getName())) {
      MapOuterClass.Filter equal =
          MapOuterClass.Filter.newBuilder()
              .setCompare(
                  MapOuterClass.Comparison.newBuilder()
                      .setColumn(column.getName())
                      .setCompare(MapOuterClass.Compare.COMPARE_EQUAL)
                      .setValue(Values.value(column)))
              .build();
      MapOuterClass.Filters.Builder both = MapOuterClass.Filters.newBuilder().addFilters(equal);
      if (request.hasFilter()) {
        both.addFilters(request.getFilter());
      }
      request.setAll(MapOuterClass.AllRows.getDefaultInstance());
      request.setFilter(MapOuterClass.Filter.newBuilder().setAll(both));
    } else {
      request.setIndex(Values.column(column));
    }
  }

  private static MapOuterClass.Bound bound(Key key, boolean inclusive) {
    return MapOuterClass.Bound.newBuilder().addAllValues(Values.columns(key)).setExclusive(!inclusive).build();
  }

  /** The checker has seen to it that all orderings go against the clustering order, or none. */
  private static boolean reversed(List<Scan.Ordering> orderings, TableMetadata metadata) {
    if (orderings.isEmpty()) {
      return false;
    }
    Scan.Ordering first = orderings.get(0);
    return first.getOrder() != metadata.getClusteringOrder(first.getColumnName());
  }

  static MapOuterClass.Order order(Scan.Ordering.Order order) {
    return order == Scan.Ordering.Order.DESC ? MapOuterClass.Order.ORDER_DESC : MapOuterClass.Order.ORDER_ASC;
  }

  private static MapOuterClass.OrderBy orderBy(Scan.Ordering ordering) {
    return MapOuterClass.OrderBy.newBuilder()
        .setColumn(ordering.getColumnName())
        .setOrder(order(ordering.getOrder()))
        .build();
  }

  static MapOuterClass.MutateRequest mutate(List<? extends Mutation> mutations) {
    MapOuterClass.MutateRequest.Builder request = MapOuterClass.MutateRequest.newBuilder();
    mutations.forEach(mutation -> request.addMutations(mutation(mutation)));
    return request.build();
  }

  private static MapOuterClass.Mutation mutation(Mutation mutation) {
    MapOuterClass.Mutation.Builder builder =
        MapOuterClass.Mutation.newBuilder()
            .setTable(table(mutation))
            .addAllKey(Values.columns(mutation.getPartitionKey()));
    mutation.getClusteringKey().ifPresent(key -> builder.addAllKey(Values.columns(key)));
    mutation.getCondition().ifPresent(condition -> builder.setCondition(Filters.condition(condition)));
    if (mutation instanceof Put) {
      MapOuterClass.Put.Builder put = MapOuterClass.Put.newBuilder();
      ((Put) mutation).getColumns().values().forEach(column -> put.addColumns(Values.column(column)));
      builder.setPut(put);
    } else if (mutation instanceof Delete) {
      builder.setDelete(MapOuterClass.Delete.getDefaultInstance());
    } else {
      throw new IllegalArgumentException("storages take puts and deletes only, not " + mutation);
    }
    return builder.build();
  }
}
