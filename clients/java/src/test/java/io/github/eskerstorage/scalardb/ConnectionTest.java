package io.github.eskerstorage.scalardb;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.scalar.db.config.DatabaseConfig;
import com.scalar.db.exception.storage.ExecutionException;
import com.scalar.db.exception.storage.RetriableExecutionException;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.Properties;
import org.junit.jupiter.api.Test;

class ConnectionTest {
  private static StatusRuntimeException error(Status.Code code, String name) {
    Metadata trailers = new Metadata();
    if (!name.isEmpty()) {
      trailers.put(Metadata.Key.of("esker-error", Metadata.ASCII_STRING_MARSHALLER), name);
    }
    return code.toStatus().withDescription("what was found").asRuntimeException(trailers);
  }

  private static void becomes(Status.Code code, String name, Class<? extends Exception> expected) {
    Properties properties = new Properties();
    properties.setProperty(DatabaseConfig.STORAGE, EskerConfig.STORAGE_NAME);
    properties.setProperty(DatabaseConfig.CONTACT_POINTS, "db.example");
    try (Connection connection = new Connection(new EskerConfig(new DatabaseConfig(properties)))) {
      StatusRuntimeException error = error(code, name);
      assertThatThrownBy(
              () ->
                  connection.call(
                      "mutate",
                      stub -> {
                        throw error;
                      }))
          .as(code + " " + name)
          .isExactlyInstanceOf(expected)
          .hasMessageContaining("mutate failed at db.example:7400: what was found")
          .hasCause(error);
    }
  }

  @Test
  void onlyWhatChangedNothingMayBeRetried() {
    becomes(Status.Code.ABORTED, "contended", RetriableExecutionException.class);
    becomes(Status.Code.RESOURCE_EXHAUSTED, "busy", RetriableExecutionException.class);
    becomes(Status.Code.UNKNOWN, "uncertain", ExecutionException.class);
    becomes(Status.Code.UNAVAILABLE, "stopping", ExecutionException.class);
    becomes(Status.Code.UNAVAILABLE, "store", ExecutionException.class);
    becomes(Status.Code.UNAVAILABLE, "", ExecutionException.class);
    becomes(Status.Code.DEADLINE_EXCEEDED, "", ExecutionException.class);
    becomes(Status.Code.ABORTED, "", ExecutionException.class);
    becomes(Status.Code.RESOURCE_EXHAUSTED, "full", ExecutionException.class);
    becomes(Status.Code.DATA_LOSS, "damaged", ExecutionException.class);
    becomes(Status.Code.NOT_FOUND, "no-table", ExecutionException.class);
  }

  @Test
  void theCallersMistakesAreSaidAsSuch() {
    becomes(Status.Code.INVALID_ARGUMENT, "invalid", IllegalArgumentException.class);
    becomes(Status.Code.UNIMPLEMENTED, "unsupported", UnsupportedOperationException.class);
  }
}
