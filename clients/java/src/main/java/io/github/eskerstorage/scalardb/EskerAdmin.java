package io.github.eskerstorage.scalardb;

import com.scalar.db.api.DistributedStorageAdmin;
import com.scalar.db.api.Scan;
import com.scalar.db.api.StorageInfo;
import com.scalar.db.api.StorageInfo.MutationAtomicityUnit;
import com.scalar.db.api.TableMetadata;
import com.scalar.db.api.VirtualTableInfo;
import com.scalar.db.api.VirtualTableJoinType;
import com.scalar.db.common.StorageInfoImpl;
import com.scalar.db.config.DatabaseConfig;
import com.scalar.db.exception.storage.ExecutionException;
import com.scalar.db.io.DataType;
import esker.map.v1.MapGrpc.MapBlockingStub;
import esker.map.v1.MapOuterClass;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;

/**
 * Namespaces, tables, columns and indexes of ScalarDB on the map of an Esker server, which keeps the schemas.
 *
 * <p>What exists and what is missing is checked before, by ScalarDB's {@link com.scalar.db.common.CommonDistributedStorageAdmin},
 * which {@link EskerProvider} puts around this. ScalarDB's own namespace counts as there, and is made with the first table in it.
 */
public final class EskerAdmin implements DistributedStorageAdmin {
  private final EskerConfig config;
  private final Connection connection;
  private volatile StorageInfo info;

  /**
   * Connects when the first call is made.
   *
   * @param config ScalarDB's properties
   * @throws IllegalArgumentException if a property makes no sense
   */
  public EskerAdmin(DatabaseConfig config) {
    this.config = new EskerConfig(config);
    this.connection = new Connection(this.config);
  }

  /** Shares a connection, which its owner closes. */
  EskerAdmin(EskerConfig config, Connection connection) {
    this.config = config;
    this.connection = connection;
  }

  /** Makes a call; empty if the server says that what it is about does not exist. */
  private <T> Optional<T> find(String what, String missing, Function<MapBlockingStub, T> call)
      throws ExecutionException {
    try {
      return Optional.of(connection.call(what, call));
    } catch (ExecutionException e) {
      if (Connection.nameOf(e.getCause()).equals(missing)) {
        return Optional.empty();
      }
      throw e;
    }
  }

  @Override
  public void createNamespace(String namespace, Map<String, String> options) throws ExecutionException {
    makeNamespace(namespace, false);
  }

  private void makeNamespace(String namespace, boolean ifNotExists) throws ExecutionException {
    MapOuterClass.CreateNamespaceRequest request =
        MapOuterClass.CreateNamespaceRequest.newBuilder()
            .setNamespace(namespace)
            .setIfNotExists(ifNotExists)
            .build();
    connection.call("create namespace", stub -> stub.createNamespace(request));
  }

  @Override
  public void dropNamespace(String namespace) throws ExecutionException {
    MapOuterClass.DropNamespaceRequest request =
        MapOuterClass.DropNamespaceRequest.newBuilder()
            .setNamespace(namespace)
            // ScalarDB's own is said to exist though it may not.
            .setIfExists(namespace.equals(config.systemNamespace))
            .build();
    connection.call("drop namespace", stub -> stub.dropNamespace(request));
  }

  @Override
  public boolean namespaceExists(String namespace) throws ExecutionException {
    return getNamespaceNames().contains(namespace);
  }

  @Override
  public Set<String> getNamespaceNames() throws ExecutionException {
    MapOuterClass.ListNamespacesRequest request = MapOuterClass.ListNamespacesRequest.getDefaultInstance();
    MapOuterClass.ListNamespacesResponse response =
        connection.call("list namespaces", stub -> stub.listNamespaces(request));
    Set<String> names = new HashSet<>(response.getNamespacesList());
    names.add(config.systemNamespace);
    return names;
  }

  @Override
  public void createTable(String namespace, String table, TableMetadata metadata, Map<String, String> options)
      throws ExecutionException {
    makeTable(namespace, table, metadata, false);
  }

  private void makeTable(String namespace, String table, TableMetadata metadata, boolean ifNotExists)
      throws ExecutionException {
    if (namespace.equals(config.systemNamespace)) {
      makeNamespace(namespace, true);
    }
    MapOuterClass.CreateTableRequest request =
        MapOuterClass.CreateTableRequest.newBuilder()
            .setTable(Requests.table(namespace, table))
            .setSchema(schema(metadata))
            .setIfNotExists(ifNotExists)
            .build();
    connection.call("create table", stub -> stub.createTable(request));
  }

  private static MapOuterClass.Schema schema(TableMetadata metadata) {
    MapOuterClass.Schema.Builder schema = MapOuterClass.Schema.newBuilder();
    for (String name : metadata.getColumnNames()) {
      schema.addColumns(columnType(name, metadata.getColumnDataType(name)));
    }
    schema.addAllPartitionKey(metadata.getPartitionKeyNames());
    for (String name : metadata.getClusteringKeyNames()) {
      schema.addClusteringKey(
          MapOuterClass.ClusteringColumn.newBuilder()
              .setName(name)
              .setOrder(Requests.order(metadata.getClusteringOrder(name))));
    }
    return schema.addAllIndexes(metadata.getSecondaryIndexNames()).build();
  }

  private static MapOuterClass.ColumnType columnType(String name, DataType type) {
    return MapOuterClass.ColumnType.newBuilder().setName(name).setType(Values.type(type)).build();
  }

  @Override
  public TableMetadata getTableMetadata(String namespace, String table) throws ExecutionException {
    MapOuterClass.DescribeTableRequest request =
        MapOuterClass.DescribeTableRequest.newBuilder().setTable(Requests.table(namespace, table)).build();
    Optional<MapOuterClass.DescribeTableResponse> response =
        find("describe table", "no-table", stub -> stub.describeTable(request));
    // ScalarDB's interface says null.
    return response.map(found -> metadata(found.getSchema())).orElse(null);
  }

  private static TableMetadata metadata(MapOuterClass.Schema schema) {
    TableMetadata.Builder metadata = TableMetadata.newBuilder();
    schema.getColumnsList().forEach(column -> metadata.addColumn(column.getName(), Values.type(column.getType())));
    schema.getPartitionKeyList().forEach(metadata::addPartitionKey);
    for (MapOuterClass.ClusteringColumn column : schema.getClusteringKeyList()) {
      boolean falls = column.getOrder() == MapOuterClass.Order.ORDER_DESC;
      metadata.addClusteringKey(column.getName(), falls ? Scan.Ordering.Order.DESC : Scan.Ordering.Order.ASC);
    }
    schema.getIndexesList().forEach(metadata::addSecondaryIndex);
    return metadata.build();
  }

  @Override
  public Set<String> getNamespaceTableNames(String namespace) throws ExecutionException {
    MapOuterClass.ListTablesRequest request =
        MapOuterClass.ListTablesRequest.newBuilder().setNamespace(namespace).build();
    Optional<MapOuterClass.ListTablesResponse> response =
        find("list tables", "no-namespace", stub -> stub.listTables(request));
    return response.map(found -> (Set<String>) new HashSet<>(found.getTablesList())).orElse(Set.of());
  }

  @Override
  public void dropTable(String namespace, String table) throws ExecutionException {
    MapOuterClass.DropTableRequest request =
        MapOuterClass.DropTableRequest.newBuilder().setTable(Requests.table(namespace, table)).build();
    connection.call("drop table", stub -> stub.dropTable(request));
  }

  @Override
  public void truncateTable(String namespace, String table) throws ExecutionException {
    MapOuterClass.TruncateTableRequest request =
        MapOuterClass.TruncateTableRequest.newBuilder().setTable(Requests.table(namespace, table)).build();
    connection.call("truncate table", stub -> stub.truncateTable(request));
  }

  @Override
  public void renameTable(String namespace, String oldTableName, String newTableName) throws ExecutionException {
    MapOuterClass.RenameTableRequest request =
        MapOuterClass.RenameTableRequest.newBuilder()
            .setTable(Requests.table(namespace, oldTableName))
            .setTo(newTableName)
            .build();
    connection.call("rename table", stub -> stub.renameTable(request));
  }

  /** Makes the table if it is missing, and its indexes; what is there stays as it is. */
  @Override
  public void repairTable(String namespace, String table, TableMetadata metadata, Map<String, String> options)
      throws ExecutionException {
    makeTable(namespace, table, metadata, true);
    for (String column : metadata.getSecondaryIndexNames()) {
      makeIndex(namespace, table, column, true);
    }
  }

  @Override
  public void createIndex(String namespace, String table, String columnName, Map<String, String> options)
      throws ExecutionException {
    makeIndex(namespace, table, columnName, false);
  }

  private void makeIndex(String namespace, String table, String column, boolean ifNotExists)
      throws ExecutionException {
    MapOuterClass.CreateIndexRequest request =
        MapOuterClass.CreateIndexRequest.newBuilder()
            .setTable(Requests.table(namespace, table))
            .setColumn(column)
            .setIfNotExists(ifNotExists)
            .build();
    connection.call("create index", stub -> stub.createIndex(request));
  }

  @Override
  public void dropIndex(String namespace, String table, String columnName) throws ExecutionException {
    MapOuterClass.DropIndexRequest request =
        MapOuterClass.DropIndexRequest.newBuilder()
            .setTable(Requests.table(namespace, table))
            .setColumn(columnName)
            .build();
    connection.call("drop index", stub -> stub.dropIndex(request));
  }

  private void alter(String namespace, String table, MapOuterClass.AlterTableRequest.Builder change)
      throws ExecutionException {
    MapOuterClass.AlterTableRequest request = change.setTable(Requests.table(namespace, table)).build();
    connection.call("alter table", stub -> stub.alterTable(request));
  }

  @Override
  public void addNewColumnToTable(String namespace, String table, String columnName, DataType columnType)
      throws ExecutionException {
    alter(
        namespace,
        table,
        MapOuterClass.AlterTableRequest.newBuilder().setAddColumn(columnType(columnName, columnType)));
  }

  @Override
  public void dropColumnFromTable(String namespace, String table, String columnName) throws ExecutionException {
    TableMetadata metadata = getTableMetadata(namespace, table);
    if (metadata != null && metadata.getSecondaryIndexNames().contains(columnName)) {
      // ScalarDB's columns go with their indexes.
      dropIndex(namespace, table, columnName);
    }
    alter(namespace, table, MapOuterClass.AlterTableRequest.newBuilder().setDropColumn(columnName));
  }

  @Override
  public void renameColumn(String namespace, String table, String oldColumnName, String newColumnName)
      throws ExecutionException {
    alter(
        namespace,
        table,
        MapOuterClass.AlterTableRequest.newBuilder()
            .setRenameColumn(MapOuterClass.RenameColumn.newBuilder().setColumn(oldColumnName).setTo(newColumnName)));
  }

  @Override
  public void alterColumnType(String namespace, String table, String columnName, DataType newColumnType)
      throws ExecutionException {
    alter(
        namespace,
        table,
        MapOuterClass.AlterTableRequest.newBuilder().setChangeType(columnType(columnName, newColumnType)));
  }

  @Override
  public void importTable(
      String namespace, String table, Map<String, String> options, Map<String, DataType> overrideColumnsType) {
    throw new UnsupportedOperationException(
        "importing " + namespace + "." + table + ": Esker keeps the schemas of all its tables, so there are none to import");
  }

  /** How far mutations are atomic, by what the server says of its storage: everywhere, on Esker's own. */
  @Override
  public StorageInfo getStorageInfo(String namespace) throws ExecutionException {
    if (info == null) {
      MapOuterClass.CapabilityRequest request = MapOuterClass.CapabilityRequest.getDefaultInstance();
      MapOuterClass.CapabilityResponse response = connection.call("capability", stub -> stub.capability(request));
      info =
          new StorageInfoImpl(
              EskerConfig.STORAGE_NAME, unit(response.getAtomicity()), response.getMutationsMax(), false);
    }
    return info;
  }

  private static MutationAtomicityUnit unit(MapOuterClass.Atomicity atomicity) {
    switch (atomicity) {
      case ATOMICITY_STORAGE:
        return MutationAtomicityUnit.STORAGE;
      case ATOMICITY_PARTITION:
        return MutationAtomicityUnit.PARTITION;
      default:
        return MutationAtomicityUnit.RECORD;
    }
  }

  @Override
  public void createVirtualTable(
      String namespace,
      String table,
      String leftSourceNamespace,
      String leftSourceTable,
      String rightSourceNamespace,
      String rightSourceTable,
      VirtualTableJoinType joinType,
      Map<String, String> options) {
    throw new UnsupportedOperationException("virtual table " + namespace + "." + table + ": Esker has no views");
  }

  @Override
  public Optional<VirtualTableInfo> getVirtualTableInfo(String namespace, String table) {
    return Optional.empty();
  }

  @Override
  public void close() {
    connection.close();
  }
}
