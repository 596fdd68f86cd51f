package io.github.eskerstorage.scalardb;

import com.scalar.db.api.Result;
import com.scalar.db.api.TableMetadata;
import com.scalar.db.common.ResultImpl;
import com.scalar.db.io.Column;
import esker.map.v1.MapOuterClass;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Rows as results: the columns that were asked for, or all that the table has, in its order. What is absent in the row is
 * null in the result.
 */
final class Rows {
  private static final MapOuterClass.Value ABSENT = MapOuterClass.Value.getDefaultInstance();

  private final TableMetadata metadata;
  private final Iterable<String> columns;

  Rows(TableMetadata metadata, List<String> projections) {
    this.metadata = metadata;
    this.columns = projections.isEmpty() ? metadata.getColumnNames() : projections;
  }

  Result result(MapOuterClass.Record record) {
    Map<String, MapOuterClass.Value> values = new LinkedHashMap<>();
    record.getColumnsList().forEach(column -> values.put(column.getName(), column.getValue()));
    return result(values);
  }

  Result result(List<String> names, MapOuterClass.Row row) {
    Map<String, MapOuterClass.Value> values = new LinkedHashMap<>();
    for (int cell = 0; cell < Math.min(names.size(), row.getCellsCount()); cell++) {
      values.put(names.get(cell), row.getCells(cell));
    }
    return result(values);
  }

  private Result result(Map<String, MapOuterClass.Value> values) {
    Map<String, Column<?>> result = new LinkedHashMap<>();
    for (String name : columns) {
      MapOuterClass.Value value = values.getOrDefault(name, ABSENT);
      result.put(name, Values.column(name, value, metadata.getColumnDataType(name)));
    }
    return new ResultImpl(result, metadata);
  }
}
