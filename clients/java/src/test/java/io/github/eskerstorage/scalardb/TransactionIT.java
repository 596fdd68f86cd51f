package io.github.eskerstorage.scalardb;

import static org.assertj.core.api.Assertions.assertThat;

import com.scalar.db.api.DistributedTransaction;
import com.scalar.db.api.TransactionState;
import com.scalar.db.config.DatabaseConfig;
import com.scalar.db.exception.transaction.TransactionException;
import com.scalar.db.transaction.consensuscommit.ConsensusCommitAdminIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.ConsensusCommitAdminRepairTableIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.ConsensusCommitConfig;
import com.scalar.db.transaction.consensuscommit.ConsensusCommitCrossPartitionScanIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.ConsensusCommitIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.ConsensusCommitNullMetadataIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.ConsensusCommitSpecificIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.ConsensusCommitWithIncludeMetadataEnabledIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.CoordinatorStateAccessor;
import com.scalar.db.transaction.consensuscommit.DistributedTransactionBackedConsensusCommitGlobalTransactionTestBase;
import com.scalar.db.transaction.consensuscommit.TwoPhaseCommitBackedConsensusCommitCrossPartitionScanIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.TwoPhaseCommitBackedConsensusCommitGlobalTransactionTestBase;
import com.scalar.db.transaction.consensuscommit.TwoPhaseCommitBackedConsensusCommitIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.TwoPhaseConsensusCommitCrossPartitionScanIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.TwoPhaseConsensusCommitIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.TwoPhaseConsensusCommitSpecificIntegrationTestBase;
import com.scalar.db.transaction.consensuscommit.TwoPhaseConsensusCommitWithIncludeMetadataEnabledIntegrationTestBase;
import com.scalar.db.transaction.singlecrudoperation.SingleCrudOperationTransactionAdminIntegrationTestBase;
import com.scalar.db.transaction.singlecrudoperation.SingleCrudOperationTransactionIntegrationTestBase;
import com.scalar.db.util.AdminTestUtils;
import java.util.Properties;
import org.junit.jupiter.api.Disabled;
import org.junit.jupiter.api.Test;

/** ScalarDB's suites of transactions over the adapter, each against an `esker serve` of its own. */
class EskerConsensusCommitIT extends ConsensusCommitIntegrationTestBase {
  @Override
  protected Properties getProps(String testName) {
    return EskerServer.properties(testName);
  }
}

/** The same, where a transaction that fits one list of mutations is committed by it. */
class EskerOnePhaseConsensusCommitIT extends ConsensusCommitIntegrationTestBase {
  private static final String WHY = "One-phase commits leave no state with the coordinator, and do not ask for it";

  @Override
  protected String getTestName() {
    return "tx_cc_one_phase";
  }

  @Override
  protected Properties getProps(String testName) {
    Properties properties = EskerServer.properties(testName);
    properties.setProperty(ConsensusCommitConfig.ONE_PHASE_COMMIT_ENABLED, "true");
    return properties;
  }

  @Test
  void transactionsAreCommittedWithoutTheCoordinator() throws TransactionException {
    DistributedTransaction transaction = manager.begin();
    transaction.insert(prepareInsert(0, 0));
    transaction.insert(prepareInsert(1, 0));
    transaction.commit();
    assertThat(manager.getState(transaction.getId())).isEqualTo(TransactionState.UNKNOWN);
    assertThat(get(prepareGet(1, 0))).isPresent();
  }

  @Disabled(WHY)
  @Test
  @Override
  public void getState_forSuccessfulTransaction_ShouldReturnCommittedState() {}

  @Disabled(WHY)
  @Test
  @Override
  public void getState_forFailedTransaction_ShouldReturnAbortedState() {}

  @Disabled(WHY)
  @Test
  @Override
  public void abort_forOngoingTransaction_ShouldAbortCorrectly() {}

  @Disabled(WHY)
  @Test
  @Override
  public void rollback_forOngoingTransaction_ShouldRollbackCorrectly() {}
}

class EskerConsensusCommitSpecificIT extends ConsensusCommitSpecificIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

/**
 * The same, where the coordinator's records of several transactions are one: tests of just that are skipped above. Its name does not end in IT, as all of
 * it takes half an hour, waiting for groups to be closed; README.md says how to run it.
 */
class EskerConsensusCommitGroupCommit extends ConsensusCommitSpecificIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    Properties properties = EskerServer.properties(testName + "_group_commit");
    properties.setProperty(ConsensusCommitConfig.COORDINATOR_GROUP_COMMIT_ENABLED, "true");
    return properties;
  }
}

class EskerConsensusCommitCrossPartitionScanIT extends ConsensusCommitCrossPartitionScanIntegrationTestBase {
  @Override
  protected Properties getProps(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerConsensusCommitWithIncludeMetadataEnabledIT extends ConsensusCommitWithIncludeMetadataEnabledIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerConsensusCommitNullMetadataIT extends ConsensusCommitNullMetadataIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerConsensusCommitAdminIT extends ConsensusCommitAdminIntegrationTestBase {
  @Override
  protected String getCoordinatorNamespaceName(String testName) {
    return CoordinatorStateAccessor.NAMESPACE;
  }

  @Override
  protected Properties getProps(String testName) {
    return EskerServer.properties(testName);
  }

  @Override
  protected String getSystemNamespaceName(Properties properties) {
    return DatabaseConfig.DEFAULT_SYSTEM_NAMESPACE_NAME;
  }
}

class EskerConsensusCommitAdminRepairTableIT extends ConsensusCommitAdminRepairTableIntegrationTestBase {
  @Override
  protected Properties getProps(String testName) {
    return EskerServer.properties(testName);
  }

  @Override
  protected AdminTestUtils getAdminTestUtils(String testName) {
    return new EskerAdminTestUtils(getProperties(testName));
  }
}

class EskerTwoPhaseConsensusCommitIT extends TwoPhaseConsensusCommitIntegrationTestBase {
  @Override
  protected Properties getProps1(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerTwoPhaseConsensusCommitSpecificIT extends TwoPhaseConsensusCommitSpecificIntegrationTestBase {
  @Override
  protected Properties getProperties1(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerTwoPhaseConsensusCommitCrossPartitionScanIT extends TwoPhaseConsensusCommitCrossPartitionScanIntegrationTestBase {
  @Override
  protected Properties getProps1(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerTwoPhaseConsensusCommitWithIncludeMetadataEnabledIT extends TwoPhaseConsensusCommitWithIncludeMetadataEnabledIntegrationTestBase {
  @Override
  protected Properties getProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerTwoPhaseCommitBackedConsensusCommitIT extends TwoPhaseCommitBackedConsensusCommitIntegrationTestBase {
  @Override
  protected Properties getFacadeStorageProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerTwoPhaseCommitBackedConsensusCommitCrossPartitionScanIT extends TwoPhaseCommitBackedConsensusCommitCrossPartitionScanIntegrationTestBase {
  @Override
  protected Properties getFacadeStorageProperties(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerDistributedTransactionBackedConsensusCommitGlobalTransactionIT extends DistributedTransactionBackedConsensusCommitGlobalTransactionTestBase {
  @Override
  protected Properties getProps(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerTwoPhaseCommitBackedConsensusCommitGlobalTransactionIT extends TwoPhaseCommitBackedConsensusCommitGlobalTransactionTestBase {
  @Override
  protected Properties getProps(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerSingleCrudOperationTransactionIT extends SingleCrudOperationTransactionIntegrationTestBase {
  @Override
  protected Properties getProps(String testName) {
    return EskerServer.properties(testName);
  }
}

class EskerSingleCrudOperationTransactionAdminIT extends SingleCrudOperationTransactionAdminIntegrationTestBase {
  @Override
  protected Properties getProps(String testName) {
    return EskerServer.properties(testName);
  }

  @Override
  protected String getSystemNamespaceName(Properties properties) {
    return DatabaseConfig.DEFAULT_SYSTEM_NAMESPACE_NAME;
  }
}
