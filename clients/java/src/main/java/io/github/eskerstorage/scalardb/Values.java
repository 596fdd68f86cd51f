package io.github.eskerstorage.scalardb;

import com.google.protobuf.ByteString;
import com.scalar.db.io.BigIntColumn;
import com.scalar.db.io.BlobColumn;
import com.scalar.db.io.BooleanColumn;
import com.scalar.db.io.Column;
import com.scalar.db.io.DataType;
import com.scalar.db.io.DateColumn;
import com.scalar.db.io.DoubleColumn;
import com.scalar.db.io.FloatColumn;
import com.scalar.db.io.IntColumn;
import com.scalar.db.io.Key;
import com.scalar.db.io.TextColumn;
import com.scalar.db.io.TimeColumn;
import com.scalar.db.io.TimestampColumn;
import com.scalar.db.io.TimestampTZColumn;
import com.scalar.db.util.ScalarDbUtils;
import esker.map.v1.MapOuterClass;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.util.List;
import java.util.stream.Collectors;

/**
 * ScalarDB's columns and types as Esker's, and back.
 *
 * <p>The eleven types are the same on both sides. A date is days since 1970-01-01, a time nanoseconds since midnight
 * (ScalarDB's are whole microseconds), both timestamps are milliseconds since 1970.
 */
final class Values {
  private Values() {}

  static MapOuterClass.DataType type(DataType type) {
    switch (type) {
      case BOOLEAN:
        return MapOuterClass.DataType.DATA_TYPE_BOOLEAN;
      case INT:
        return MapOuterClass.DataType.DATA_TYPE_INT;
      case BIGINT:
        return MapOuterClass.DataType.DATA_TYPE_BIGINT;
      case FLOAT:
        return MapOuterClass.DataType.DATA_TYPE_FLOAT;
      case DOUBLE:
        return MapOuterClass.DataType.DATA_TYPE_DOUBLE;
      case TEXT:
        return MapOuterClass.DataType.DATA_TYPE_TEXT;
      case BLOB:
        return MapOuterClass.DataType.DATA_TYPE_BLOB;
      case DATE:
        return MapOuterClass.DataType.DATA_TYPE_DATE;
      case TIME:
        return MapOuterClass.DataType.DATA_TYPE_TIME;
      case TIMESTAMP:
        return MapOuterClass.DataType.DATA_TYPE_TIMESTAMP;
      case TIMESTAMPTZ:
        return MapOuterClass.DataType.DATA_TYPE_TIMESTAMPTZ;
      default:
        throw new IllegalArgumentException("column type " + type + " is not known to this version of the adapter");
    }
  }

  static DataType type(MapOuterClass.DataType type) {
    for (DataType one : DataType.values()) {
      if (type(one) == type) {
        return one;
      }
    }
    throw new IllegalStateException("the server has a column of type " + type + ", which this adapter does not know");
  }

  /** A column's value; null if it is null. */
  static MapOuterClass.Value value(Column<?> column) {
    MapOuterClass.Value.Builder value = MapOuterClass.Value.newBuilder();
    if (column.hasNullValue()) {
      return value.setNull(MapOuterClass.Null.getDefaultInstance()).build();
    }
    switch (column.getDataType()) {
      case BOOLEAN:
        return value.setBoolean(column.getBooleanValue()).build();
      case INT:
        return value.setInt(column.getIntValue()).build();
      case BIGINT:
        return value.setBigint(column.getBigIntValue()).build();
      case FLOAT:
        return value.setFloat(column.getFloatValue()).build();
      case DOUBLE:
        return value.setDouble(column.getDoubleValue()).build();
      case TEXT:
        return value.setText(checked(column)).build();
      case BLOB:
        return value.setBlob(ByteString.copyFrom(column.getBlobValueAsByteBuffer())).build();
      case DATE:
        return value.setDate(Math.toIntExact(column.getDateValue().toEpochDay())).build();
      case TIME:
        return value.setTime(column.getTimeValue().toNanoOfDay()).build();
      case TIMESTAMP:
        return value.setTimestamp(column.getTimestampValue().toInstant(ZoneOffset.UTC).toEpochMilli()).build();
      case TIMESTAMPTZ:
        return value.setTimestamptz(column.getTimestampTZValue().toEpochMilli()).build();
      default:
        throw new IllegalArgumentException(
            "column " + column.getName() + " is " + column.getDataType() + ", which this adapter does not know");
    }
  }

  /** A text as it is, if it can be sent: what is half of a character has no encoding, and would come back as something else. */
  private static String checked(Column<?> column) {
    String text = column.getTextValue();
    for (int at = 0; at < text.length(); at++) {
      char one = text.charAt(at);
      if (!Character.isSurrogate(one)) {
        continue;
      }
      boolean paired =
          Character.isHighSurrogate(one) && at + 1 < text.length() && Character.isLowSurrogate(text.charAt(at + 1));
      if (!paired) {
        throw new IllegalArgumentException(
            String.format("column %s: a lone surrogate, U+%04X, at index %d", column.getName(), (int) one, at));
      }
      at++;
    }
    return text;
  }

  static MapOuterClass.Column column(Column<?> column) {
    return MapOuterClass.Column.newBuilder().setName(column.getName()).setValue(value(column)).build();
  }

  static List<MapOuterClass.Column> columns(Key key) {
    return key.getColumns().stream().map(Values::column).collect(Collectors.toList());
  }

  /** A value of a row as a column; one that is null or absent gets the type that the table has for it. */
  static Column<?> column(String name, MapOuterClass.Value value, DataType type) {
    switch (value.getValueCase()) {
      case BOOLEAN:
        return BooleanColumn.of(name, value.getBoolean());
      case INT:
        return IntColumn.of(name, value.getInt());
      case BIGINT:
        return BigIntColumn.of(name, value.getBigint());
      case FLOAT:
        return FloatColumn.of(name, value.getFloat());
      case DOUBLE:
        return DoubleColumn.of(name, value.getDouble());
      case TEXT:
        return TextColumn.of(name, value.getText());
      case BLOB:
        return BlobColumn.of(name, value.getBlob().toByteArray());
      case DATE:
        return DateColumn.of(name, LocalDate.ofEpochDay(value.getDate()));
      case TIME:
        return TimeColumn.of(name, LocalTime.ofNanoOfDay(value.getTime()));
      case TIMESTAMP:
        return TimestampColumn.of(
            name, LocalDateTime.ofInstant(Instant.ofEpochMilli(value.getTimestamp()), ZoneOffset.UTC));
      case TIMESTAMPTZ:
        return TimestampTZColumn.of(name, Instant.ofEpochMilli(value.getTimestamptz()));
      default:
        return ScalarDbUtils.createNullColumn(name, type);
    }
  }
}
