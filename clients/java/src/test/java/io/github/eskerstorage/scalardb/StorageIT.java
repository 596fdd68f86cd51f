package io.github.eskerstorage.scalardb;

import com.scalar.db.api.DistributedStorageAdminCaseSensitivityIntegrationTestBase;
import com.scalar.db.api.DistributedStorageAdminIntegrationTestBase;
import com.scalar.db.api.DistributedStorageAdminRepairTableIntegrationTestBase;
import com.scalar.db.api.DistributedStorageCaseSensitivityIntegrationTestBase;
import com.scalar.db.api.DistributedStorageColumnValueIntegrationTestBase;
import com.scalar.db.api.DistributedStorageConditionalMutationIntegrationTestBase;
import com.scalar.db.api.DistributedStorageCrossPartitionScanIntegrationTestBase;
import com.scalar.db.api.DistributedStorageIntegrationTestBase;
import com.scalar.db.api.DistributedStorageJapaneseIntegrationTestBase;
import com.scalar.db.api.DistributedStorageMultipleClusteringKeyScanIntegrationTestBase;
import com.scalar.db.api.DistributedStorageMultiplePartitionKeyIntegrationTestBase;
import com.scalar.db.api.DistributedStorageMutationAtomicityUnitIntegrationTestBase;
import com.scalar.db.api.DistributedStorageSecondaryIndexIntegrationTestBase;
import com.scalar.db.api.DistributedStorageSingleClusteringKeyScanIntegrationTestBase;
import com.scalar.db.api.DistributedStorageSinglePartitionKeyIntegrationTestBase;
import com.scalar.db.api.DistributedStorageWithReservedKeywordIntegrationTestBase;
import com.scalar.db.config.DatabaseConfig;
import com.scalar.db.util.AdminTestUtils;
import java.util.Properties;
import java.util.stream.Stream;
import org.junit.jupiter.params.provider.Arguments;

/** ScalarDB's suites of storages, each against an `esker serve` of its own. */
class EskerStorageIT extends DistributedStorageIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageColumnValueIT extends DistributedStorageColumnValueIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }

  /** A row of Esker is one value of the store, of at most 16 MiB. */
  @Override
  protected Stream<Arguments> provideLargeBlobSizes() {
    return Stream.of(Arguments.of(16_000_000, "16 MB"));
  }
}

class EskerStorageConditionalMutationIT extends DistributedStorageConditionalMutationIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageSingleClusteringKeyScanIT extends DistributedStorageSingleClusteringKeyScanIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageMultipleClusteringKeyScanIT extends DistributedStorageMultipleClusteringKeyScanIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageSinglePartitionKeyIT extends DistributedStorageSinglePartitionKeyIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageMultiplePartitionKeyIT extends DistributedStorageMultiplePartitionKeyIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageSecondaryIndexIT extends DistributedStorageSecondaryIndexIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageCrossPartitionScanIT extends DistributedStorageCrossPartitionScanIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageMutationAtomicityUnitIT extends DistributedStorageMutationAtomicityUnitIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageJapaneseIT extends DistributedStorageJapaneseIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageCaseSensitivityIT extends DistributedStorageCaseSensitivityIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageWithReservedKeywordIT extends DistributedStorageWithReservedKeywordIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerStorageAdminIT extends DistributedStorageAdminIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }

  @Override
  protected String getSystemNamespaceName(Properties properties) {
    return DatabaseConfig.DEFAULT_SYSTEM_NAMESPACE_NAME;
  }

  @Override
  protected AdminTestUtils getAdminTestUtils(String testName) {
    return new EskerAdminTestUtils(getProperties(testName));
  }
}

class EskerStorageAdminCaseSensitivityIT extends DistributedStorageAdminCaseSensitivityIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }

  @Override
  protected String getSystemNamespaceName(Properties properties) {
    return DatabaseConfig.DEFAULT_SYSTEM_NAMESPACE_NAME;
  }

  @Override
  protected AdminTestUtils getAdminTestUtils(String testName) {
    return new EskerAdminTestUtils(getProperties(testName));
  }
}

class EskerStorageAdminRepairTableIT extends DistributedStorageAdminRepairTableIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }

  @Override
  protected AdminTestUtils getAdminTestUtils(String testName) {
    return new EskerAdminTestUtils(getProperties(testName));
  }
}
