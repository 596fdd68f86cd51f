package io.github.eskerstorage.scalardb;

import com.scalar.db.api.DistributedStorageAdmin;
import com.scalar.db.service.StorageFactory;
import com.scalar.db.util.AdminTestUtils;
import java.util.Properties;

/** What ScalarDB's suites do behind the back of an admin. Metadata are Esker's schemas here, which cannot get lost or damaged by themselves. */
final class EskerAdminTestUtils extends AdminTestUtils {
  private final DistributedStorageAdmin admin;

  EskerAdminTestUtils(Properties properties) {
    super(properties);
    admin = StorageFactory.create(properties).getStorageAdmin();
  }

  @Override
  public void dropMetadataTable() {
    // There is none.
  }

  @Override
  public void truncateMetadataTable() {
    // There is none.
  }

  @Override
  public void corruptMetadata(String namespace, String table) {
    // Nothing there to damage.
  }

  @Override
  public void deleteMetadata(String namespace, String table) {
    // It goes with the table.
  }

  @Override
  public boolean namespaceExists(String namespace) throws Exception {
    return admin.namespaceExists(namespace);
  }

  @Override
  public boolean tableExists(String namespace, String table) throws Exception {
    return admin.tableExists(namespace, table);
  }

  @Override
  public void dropTable(String namespace, String table) throws Exception {
    admin.dropTable(namespace, table);
  }

  @Override
  public void close() {
    admin.close();
  }
}
