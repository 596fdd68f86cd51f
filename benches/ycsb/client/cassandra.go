// Cassandra: go-ycsb's binding, and the table that it finds.

package main

import (
	"fmt"
	"time"

	"github.com/gocql/gocql"
	"github.com/magiconair/properties"
	// Registers itself.
	_ "github.com/pingcap/go-ycsb/db/cassandra"
)

// prepareCassandra makes the table before the binding does, which would compress it.
func prepareCassandra(set *properties.Properties) error {
	cluster := gocql.NewCluster(set.GetString("cassandra.cluster", "127.0.0.1:19042"))
	cluster.Timeout = 30 * time.Second
	session, err := cluster.CreateSession()
	if err != nil {
		return err
	}
	defer session.Close()
	keyspace := set.GetString("cassandra.keyspace", "ycsb")
	for _, statement := range []string{
		"CREATE KEYSPACE %s WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
		"CREATE TABLE %s.usertable (ycsb_key varchar PRIMARY KEY, field0 varchar) WITH compression = {'enabled': false}",
	} {
		if err := session.Query(fmt.Sprintf(statement, keyspace)).Exec(); err != nil {
			return err
		}
	}
	return nil
}
