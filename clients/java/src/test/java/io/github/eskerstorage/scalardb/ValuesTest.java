package io.github.eskerstorage.scalardb;

import static org.assertj.core.api.Assertions.assertThat;

import com.scalar.db.io.BigIntColumn;
import com.scalar.db.io.BlobColumn;
import com.scalar.db.io.BooleanColumn;
import com.scalar.db.io.Column;
import com.scalar.db.io.DataType;
import com.scalar.db.io.DateColumn;
import com.scalar.db.io.DoubleColumn;
import com.scalar.db.io.FloatColumn;
import com.scalar.db.io.IntColumn;
import com.scalar.db.io.TextColumn;
import com.scalar.db.io.TimeColumn;
import com.scalar.db.io.TimestampColumn;
import com.scalar.db.io.TimestampTZColumn;
import com.scalar.db.util.ScalarDbUtils;
import esker.map.v1.MapOuterClass;
import java.time.LocalTime;
import java.util.List;
import org.junit.jupiter.api.Test;

class ValuesTest {
  private static void isReadBack(Column<?> column) {
    assertThat(Values.column(column.getName(), Values.value(column), column.getDataType())).isEqualTo(column);
  }

  @Test
  void leastAndGreatestValuesAreReadBack() {
    List<Column<?>> columns =
        List.of(
            BooleanColumn.of("c", true),
            IntColumn.of("c", Integer.MIN_VALUE),
            IntColumn.of("c", Integer.MAX_VALUE),
            BigIntColumn.of("c", Long.MIN_VALUE),
            BigIntColumn.of("c", Long.MAX_VALUE),
            FloatColumn.of("c", -0.0f),
            FloatColumn.of("c", Float.NEGATIVE_INFINITY),
            DoubleColumn.of("c", Double.MIN_VALUE),
            DoubleColumn.of("c", Double.NaN),
            TextColumn.of("c", ""),
            TextColumn.of("c", "\u0000日本語\uD83D\uDE00"),
            BlobColumn.of("c", new byte[0]),
            BlobColumn.of("c", new byte[] {0, -1}),
            DateColumn.of("c", DateColumn.MIN_VALUE),
            DateColumn.of("c", DateColumn.MAX_VALUE),
            TimeColumn.of("c", LocalTime.MIN),
            TimeColumn.of("c", TimeColumn.MAX_VALUE),
            TimestampColumn.of("c", TimestampColumn.MIN_VALUE),
            TimestampColumn.of("c", TimestampColumn.MAX_VALUE),
            TimestampTZColumn.of("c", TimestampTZColumn.MIN_VALUE),
            TimestampTZColumn.of("c", TimestampTZColumn.MAX_VALUE));
    columns.forEach(ValuesTest::isReadBack);
  }

  @Test
  void nullOfEveryTypeIsReadBackAndSoIsAnAbsentCell() {
    for (DataType type : DataType.values()) {
      Column<?> column = ScalarDbUtils.createNullColumn("c", type);
      isReadBack(column);
      assertThat(Values.column("c", MapOuterClass.Value.getDefaultInstance(), type)).isEqualTo(column);
    }
  }

  @Test
  void typesAreReadBack() {
    for (DataType type : DataType.values()) {
      assertThat(Values.type(Values.type(type))).isEqualTo(type);
    }
  }
}
