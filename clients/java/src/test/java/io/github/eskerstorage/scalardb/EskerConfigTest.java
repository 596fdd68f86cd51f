package io.github.eskerstorage.scalardb;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.scalar.db.config.DatabaseConfig;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class EskerConfigTest {
  private static EskerConfig config(String... pairs) {
    Properties properties = new Properties();
    properties.setProperty(DatabaseConfig.STORAGE, EskerConfig.STORAGE_NAME);
    for (int at = 0; at < pairs.length; at += 2) {
      properties.setProperty(pairs[at], pairs[at + 1]);
    }
    return new EskerConfig(new DatabaseConfig(properties));
  }

  private static void reads(String point, String port, String expectedHost, int expectedPort) {
    EskerConfig config = config(DatabaseConfig.CONTACT_POINTS, point, DatabaseConfig.CONTACT_PORT, port);
    assertThat(config.host).as(point).isEqualTo(expectedHost);
    assertThat(config.port).as(point).isEqualTo(expectedPort);
  }

  private static void refuses(String named, String... pairs) {
    assertThatThrownBy(() -> config(pairs)).isInstanceOf(IllegalArgumentException.class).hasMessageContaining(named);
  }

  @Test
  void contactPointsAreReadWithAndWithoutPort() {
    reads("db.example", "0", "db.example", EskerConfig.DEFAULT_PORT);
    reads("db.example", "7500", "db.example", 7500);
    reads("db.example:7501", "7500", "db.example", 7501);
    reads("127.0.0.1:1", "0", "127.0.0.1", 1);
    reads("[::1]:7502", "0", "::1", 7502);
    reads("[::1]", "7503", "::1", 7503);
    reads("::1", "7504", "::1", 7504);
  }

  @Test
  void whatMakesNoSenseIsRefusedByItsName() {
    String points = DatabaseConfig.CONTACT_POINTS;
    refuses(points, points, "a,b");
    refuses(points, points, "grpc://a:1");
    refuses(points, points, "a:0");
    refuses(points, points, "a:65536");
    refuses(points, points, "a:b");
    refuses(points, points, ":7400");
    refuses(EskerConfig.TIMEOUT_MS, points, "a", EskerConfig.TIMEOUT_MS, "0");
    refuses(EskerConfig.TLS, points, "a", EskerConfig.TLS_SERVER_NAME, "b");
    refuses(EskerConfig.TLS_CA_FILE, points, "a", EskerConfig.TLS, "true", EskerConfig.TLS_CA_FILE, "/nowhere");
  }

  @Test
  void theTokenIsThePropertyOrTheFirstLineOfTheFile(@TempDir Path folder) throws IOException {
    String points = DatabaseConfig.CONTACT_POINTS;
    Path file = Files.writeString(folder.resolve("token"), "secret\nmore\n");
    Path empty = Files.writeString(folder.resolve("empty"), "\n");
    assertThat(config(points, "a").token).isEmpty();
    assertThat(config(points, "a", EskerConfig.TOKEN, "secret").token).hasValue("secret");
    assertThat(config(points, "a", EskerConfig.TOKEN_FILE, file.toString()).token).hasValue("secret");
    refuses(EskerConfig.TOKEN_FILE, points, "a", EskerConfig.TOKEN_FILE, empty.toString());
    refuses(EskerConfig.TOKEN, points, "a", EskerConfig.TOKEN, "x", EskerConfig.TOKEN_FILE, file.toString());
  }
}
