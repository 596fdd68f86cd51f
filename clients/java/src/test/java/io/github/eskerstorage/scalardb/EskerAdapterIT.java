package io.github.eskerstorage.scalardb;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.scalar.db.api.ConditionBuilder;
import com.scalar.db.api.Delete;
import com.scalar.db.api.DistributedStorage;
import com.scalar.db.api.DistributedStorageAdmin;
import com.scalar.db.api.DistributedTransaction;
import com.scalar.db.api.DistributedTransactionAdmin;
import com.scalar.db.api.DistributedTransactionManager;
import com.scalar.db.api.Get;
import com.scalar.db.api.Put;
import com.scalar.db.api.PutBuilder;
import com.scalar.db.api.Result;
import com.scalar.db.api.Scan;
import com.scalar.db.api.Scanner;
import com.scalar.db.api.StorageInfo;
import com.scalar.db.api.TableMetadata;
import com.scalar.db.api.Upsert;
import com.scalar.db.config.DatabaseConfig;
import com.scalar.db.exception.storage.ExecutionException;
import com.scalar.db.exception.storage.NoMutationException;
import com.scalar.db.exception.storage.RetriableExecutionException;
import com.scalar.db.io.DataType;
import com.scalar.db.io.Key;
import com.scalar.db.service.StorageFactory;
import com.scalar.db.service.TransactionFactory;
import com.scalar.db.transaction.consensuscommit.ConsensusCommitConfig;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.io.TempDir;

/** What ScalarDB's suites do not ask: errors, limits, tokens, and how the adapter uses the server. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class EskerAdapterIT {
  private static final TableMetadata TABLE =
      TableMetadata.newBuilder()
          .addColumn("p", DataType.INT)
          .addColumn("c", DataType.INT)
          .addColumn("t", DataType.TEXT)
          .addColumn("b", DataType.BLOB)
          .addPartitionKey("p")
          .addClusteringKey("c")
          .build();

  private EskerServer server;
  private DistributedStorageAdmin admin;
  private DistributedStorage storage;

  @BeforeAll
  void start() throws ExecutionException {
    server = new EskerServer();
    StorageFactory factory = StorageFactory.create(server.properties());
    admin = factory.getStorageAdmin();
    storage = factory.getStorage();
    for (String namespace : List.of("one", "two")) {
      admin.createNamespace(namespace);
      admin.createTable(namespace, "rows", TABLE);
    }
    admin.createTable("one", "indexed", TABLE);
  }

  @BeforeEach
  void empty() throws ExecutionException {
    admin.truncateTable("one", "rows");
    admin.truncateTable("two", "rows");
  }

  @AfterAll
  void stop() {
    storage.close();
    admin.close();
    server.close();
  }

  private static PutBuilder.Buildable put(String namespace, int p, int c) {
    return put(namespace, "rows", p, c);
  }

  private static PutBuilder.Buildable put(String namespace, String table, int p, int c) {
    return Put.newBuilder()
        .namespace(namespace)
        .table(table)
        .partitionKey(Key.ofInt("p", p))
        .clusteringKey(Key.ofInt("c", c));
  }

  private static Get get(String namespace, int p, int c) {
    return Get.newBuilder()
        .namespace(namespace)
        .table("rows")
        .partitionKey(Key.ofInt("p", p))
        .clusteringKey(Key.ofInt("c", c))
        .build();
  }

  @Test
  void mutationsOfSeveralNamespacesAreAppliedWholeOrNotAtAll() throws ExecutionException {
    assertThat(admin.getStorageInfo("one").getMutationAtomicityUnit())
        .isEqualTo(StorageInfo.MutationAtomicityUnit.STORAGE);
    Put first = put("one", 1, 1).textValue("t", "first").build();
    Put second = put("two", 2, 2).textValue("t", "second").condition(ConditionBuilder.putIfExists()).build();
    assertThatThrownBy(() -> storage.mutate(List.of(first, second))).isInstanceOf(NoMutationException.class);
    assertThat(storage.get(get("one", 1, 1))).isEmpty();
    storage.put(put("two", 2, 2).build());
    storage.mutate(List.of(first, second));
    assertThat(storage.get(get("one", 1, 1)).map(row -> row.getText("t"))).hasValue("first");
    assertThat(storage.get(get("two", 2, 2)).map(row -> row.getText("t"))).hasValue("second");
    Delete gone =
        Delete.newBuilder()
            .namespace("one")
            .table("rows")
            .partitionKey(Key.ofInt("p", 1))
            .clusteringKey(Key.ofInt("c", 1))
            .condition(ConditionBuilder.deleteIf(ConditionBuilder.column("t").isEqualToText("first")).build())
            .build();
    storage.mutate(List.of(gone, second));
    assertThat(storage.get(get("one", 1, 1))).isEmpty();
  }

  @Test
  void indexesOfKeyColumnsFindTheirRows() throws ExecutionException, IOException {
    for (String column : List.of("p", "c", "t")) {
      admin.createIndex("one", "indexed", column);
    }
    for (int p = 0; p < 3; p++) {
      for (int c = 0; c < 3; c++) {
        storage.put(put("one", "indexed", p, c).textValue("t", "t" + c).build());
      }
    }
    assertThat(byIndex(Key.ofInt("p", 1))).isEqualTo(List.of("1/0", "1/1", "1/2"));
    assertThat(byIndex(Key.ofInt("c", 2))).isEqualTo(List.of("0/2", "1/2", "2/2"));
    assertThat(byIndex(Key.ofText("t", "t0"))).isEqualTo(List.of("0/0", "1/0", "2/0"));
  }

  private List<String> byIndex(Key key) throws ExecutionException, IOException {
    Scan scan = Scan.newBuilder().namespace("one").table("indexed").indexKey(key).build();
    try (Scanner scanner = storage.scan(scan)) {
      return scanner.all().stream().map(row -> row.getInt("p") + "/" + row.getInt("c")).sorted().toList();
    }
  }

  @Test
  void longScansComeInPartsAndEndWhereTheyAreClosed() throws ExecutionException, IOException {
    byte[] blob = new byte[10_000];
    int rows = 1_000;
    for (int from = 0; from < rows; from += 100) {
      List<Put> puts = new ArrayList<>();
      for (int c = from; c < from + 100; c++) {
        puts.add(put("one", 1, c).blobValue("b", blob).build());
      }
      storage.put(puts);
    }
    Scan scan = Scan.newBuilder().namespace("one").table("rows").partitionKey(Key.ofInt("p", 1)).build();
    for (int read : new int[] {0, 1, 30, rows}) {
      try (Scanner scanner = storage.scan(scan)) {
        for (int c = 0; c < read; c++) {
          Result row = scanner.one().orElseThrow();
          assertThat(row.getInt("c")).isEqualTo(c);
          assertThat(row.getBlobAsBytes("b")).isEqualTo(blob);
        }
        assertThat(read < rows || scanner.one().isEmpty()).isTrue();
      }
    }
    Scanner closed = storage.scan(scan);
    closed.close();
    assertThatThrownBy(closed::one).isInstanceOf(IllegalStateException.class);
  }

  @Test
  void whatIsTooLongIsTheCallersMistakeAndTheLimitIsNamed() {
    Put wide = put("one", 1, 1).blobValue("b", new byte[41 << 20]).build();
    // As a failed execution, after which a transaction takes back what it has prepared elsewhere.
    assertThatThrownBy(() -> storage.put(wide))
        .isInstanceOf(ExecutionException.class)
        .hasCauseInstanceOf(IllegalArgumentException.class)
        .hasMessageContaining(String.valueOf(Connection.MESSAGE_BYTES_MAX));
    Put wideForARow = put("one", 1, 1).blobValue("b", new byte[17 << 20]).build();
    assertThatThrownBy(() -> storage.put(wideForARow))
        .isInstanceOf(ExecutionException.class)
        .hasCauseInstanceOf(IllegalArgumentException.class)
        .hasMessageContaining(String.valueOf(16 << 20));
    assertThatThrownBy(() -> admin.createNamespace("n".repeat(129)))
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessageContaining("128");
  }

  /** It could be written once, and then neither updated nor deleted: its before-image did not fit beside it. */
  @Test
  void aRowOfTheGreatestLengthIsUpdatedAndDeletedInTwoPhases() throws Exception {
    Properties properties = server.properties();
    properties.setProperty(ConsensusCommitConfig.ONE_PHASE_COMMIT_ENABLED, "false");
    TransactionFactory factory = TransactionFactory.create(properties);
    try (DistributedTransactionAdmin transactionAdmin = factory.getTransactionAdmin();
        DistributedTransactionManager manager = factory.getTransactionManager()) {
      transactionAdmin.createCoordinatorTables(true);
      transactionAdmin.createNamespace("wide", true);
      transactionAdmin.createTable("wide", "rows", TABLE, true);
      for (byte round = 1; round <= 3; round++) {
        byte[] blob = new byte[(16 << 20) - 4_096];
        Arrays.fill(blob, round);
        DistributedTransaction writing = manager.begin();
        for (int p : new int[] {1, 2}) {
          assertThat(writing.get(get("wide", p, 1)).isPresent()).isEqualTo(round > 1);
          writing.upsert(
              Upsert.newBuilder()
                  .namespace("wide")
                  .table("rows")
                  .partitionKey(Key.ofInt("p", p))
                  .clusteringKey(Key.ofInt("c", 1))
                  .blobValue("b", blob)
                  .build());
        }
        writing.commit();
        DistributedTransaction reading = manager.begin();
        assertThat(reading.get(get("wide", 2, 1)).orElseThrow().getBlobAsBytes("b")).isEqualTo(blob);
        reading.commit();
      }
      DistributedTransaction deleting = manager.begin();
      for (int p : new int[] {1, 2}) {
        deleting.get(get("wide", p, 1));
        deleting.delete(
            Delete.newBuilder()
                .namespace("wide")
                .table("rows")
                .partitionKey(Key.ofInt("p", p))
                .clusteringKey(Key.ofInt("c", 1))
                .build());
      }
      deleting.commit();
      DistributedTransaction reading = manager.begin();
      assertThat(reading.get(get("wide", 1, 1))).isEmpty();
      reading.commit();
      transactionAdmin.dropTable("wide", "rows");
      transactionAdmin.dropNamespace("wide");
    }
  }

  @Test
  void aServerThatIsAwayIsAnErrorThatSaysWhere() throws IOException {
    int port;
    try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
      port = socket.getLocalPort();
    }
    Properties properties = server.properties();
    properties.setProperty(DatabaseConfig.CONTACT_POINTS, "127.0.0.1:" + port);
    try (DistributedStorage away = StorageFactory.create(properties).getStorage()) {
      assertThatThrownBy(() -> away.put(put("one", 1, 1).build()))
          .isInstanceOf(ExecutionException.class)
          .isNotInstanceOf(RetriableExecutionException.class);
    }
    try (DistributedStorageAdmin away = StorageFactory.create(properties).getStorageAdmin()) {
      assertThatThrownBy(away::getNamespaceNames).rootCause().hasMessageContaining("refused");
    }
  }

  @Test
  void halfACharacterIsRefusedAndNotStoredAsSomethingElse() throws ExecutionException {
    for (String text : List.of("\ud800", "a\udc00", "\udc00\ud800", "x\ud83d")) {
      assertThatThrownBy(() -> storage.put(put("one", 1, 1).textValue("t", text).build()))
          .isInstanceOf(ExecutionException.class)
          .hasMessageContaining("column t: a lone surrogate");
    }
    storage.put(put("one", 1, 1).textValue("t", "\ud83d\ude00").build());
    assertThat(storage.get(get("one", 1, 1)).map(row -> row.getText("t"))).hasValue("\ud83d\ude00");
  }

  @Test
  void aScanGoesOnAndCallsAreAnsweredSoonAfterTheServerWasKilledAndStartedAgain() throws Exception {
    try (EskerServer mortal = new EskerServer()) {
      StorageFactory factory = StorageFactory.create(mortal.properties());
      try (DistributedStorageAdmin admin = factory.getStorageAdmin();
          DistributedStorage storage = factory.getStorage()) {
        admin.createNamespace("one");
        admin.createTable("one", "rows", TABLE);
        int rows = 400;
        for (int c = 0; c < rows; c++) {
          storage.put(put("one", 1, c).blobValue("b", new byte[20_000]).build());
        }
        Scan scan = Scan.newBuilder().namespace("one").table("rows").partitionKey(Key.ofInt("p", 1)).build();
        for (int limit : new int[] {0, 300}) {
          try (Scanner scanner = storage.scan(Scan.newBuilder(scan).limit(limit).build())) {
            int expected = limit == 0 ? rows : limit;
            for (int c = 0; c < expected; c++) {
              if (c == 20) {
                mortal.killAndStart();
              }
              assertThat(scanner.one().orElseThrow().getInt("c")).isEqualTo(c);
            }
            assertThat(scanner.one()).isEmpty();
          }
        }
        // Away for so long that the channel by itself would wait for seconds before it tries again.
        long began = System.nanoTime();
        mortal.kill();
        while (System.nanoTime() - began < 6_000_000_000L) {
          assertThatThrownBy(() -> storage.get(get("one", 1, 1))).isInstanceOf(ExecutionException.class);
          Thread.sleep(100);
        }
        mortal.killAndStart();
        long back = System.nanoTime();
        boolean answered = false;
        for (int tries = 0; !answered && tries < 200; tries++) {
          try {
            answered = storage.get(get("one", 1, 1)).isPresent();
          } catch (ExecutionException e) {
            Thread.sleep(20);
          }
        }
        assertThat(answered).isTrue();
        // One second is what is promised; the channel by itself waits for several after such an outage.
        assertThat((System.nanoTime() - back) / 1_000_000).isLessThan(2_000);
      }
    }
  }

  @Test
  void aServerThatDoesNotAnswerIsLeftAfterTheTimeout() throws Exception {
    // Takes connections, says nothing.
    try (ServerSocket silent = new ServerSocket(0, 10, InetAddress.getLoopbackAddress())) {
      Properties properties = server.properties();
      properties.setProperty(DatabaseConfig.CONTACT_POINTS, "127.0.0.1:" + silent.getLocalPort());
      properties.setProperty(EskerConfig.TIMEOUT_MS, "200");
      try (DistributedStorageAdmin admin = StorageFactory.create(properties).getStorageAdmin()) {
        assertThatThrownBy(admin::getNamespaceNames).isInstanceOf(ExecutionException.class);
      }
    }
  }

  @Test
  void aServerWithATokenAnswersThoseWhoHaveIt(@TempDir Path folder) throws Exception {
    Path token = Files.writeString(folder.resolve("token"), "secret\n");
    try (EskerServer guarded = new EskerServer("--grpc-token-file", token.toString())) {
      Properties properties = guarded.properties();
      try (EskerAdmin stranger = new EskerAdmin(new DatabaseConfig(properties))) {
        assertThatThrownBy(() -> stranger.createNamespace("n"))
            .isInstanceOfSatisfying(
                ExecutionException.class, error -> assertThat(error.isAuthenticationError()).isTrue());
      }
      properties.setProperty(EskerConfig.TOKEN_FILE, token.toString());
      try (EskerAdmin friend = new EskerAdmin(new DatabaseConfig(properties))) {
        friend.createNamespace("n");
        assertThat(friend.getNamespaceNames()).contains("n");
      }
    }
  }

  @Test
  void theServersCertificateIsCheckedByTheGivenAuthority(@TempDir Path folder) throws Exception {
    Path cert = folder.resolve("cert.pem");
    Path key = folder.resolve("key.pem");
    Process made =
        new ProcessBuilder(
                ("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=esker.test"
                        + " -addext subjectAltName=DNS:esker.test -keyout " + key + " -out " + cert)
                    .split(" "))
            .redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.DISCARD)
            .start();
    assertThat(made.waitFor()).as("openssl req").isZero();
    try (EskerServer guarded = new EskerServer("--tls-cert", cert.toString(), "--tls-key", key.toString())) {
      Properties properties = guarded.properties();
      properties.setProperty(EskerConfig.TLS, "true");
      try (EskerAdmin distrustful = new EskerAdmin(new DatabaseConfig(properties))) {
        assertThatThrownBy(distrustful::getNamespaceNames).isInstanceOf(ExecutionException.class);
      }
      properties.setProperty(EskerConfig.TLS_CA_FILE, cert.toString());
      properties.setProperty(EskerConfig.TLS_SERVER_NAME, "esker.test");
      try (EskerAdmin trusting = new EskerAdmin(new DatabaseConfig(properties))) {
        assertThat(trusting.getNamespaceNames()).contains("scalardb");
      }
    }
  }
}
