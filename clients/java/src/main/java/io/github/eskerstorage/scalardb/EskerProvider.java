package io.github.eskerstorage.scalardb;

import com.scalar.db.api.DistributedStorage;
import com.scalar.db.api.DistributedStorageAdmin;
import com.scalar.db.api.DistributedStorageProvider;
import com.scalar.db.common.CommonDistributedStorageAdmin;
import com.scalar.db.config.DatabaseConfig;

/** Where ScalarDB finds the adapter: {@code scalar.db.storage=esker}. */
public final class EskerProvider implements DistributedStorageProvider {
  @Override
  public String getName() {
    return EskerConfig.STORAGE_NAME;
  }

  @Override
  public DistributedStorage createDistributedStorage(DatabaseConfig config) {
    return new EskerStorage(config);
  }

  @Override
  public DistributedStorageAdmin createDistributedStorageAdmin(DatabaseConfig config) {
    return new CommonDistributedStorageAdmin(new EskerAdmin(config));
  }
}
