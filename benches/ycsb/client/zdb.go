// The binding for ZDBService by Thrift: a record is one field, the key `user123` is asked for as `123`.
//
// thread → connection of its own → get or put → answer
//
// Binary protocol, unframed; buffers that hold a whole message, so that a call is one write and its answer mostly one
// read.

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/prop"
	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"esker/benches/ycsb/zdb"
)

//go:generate thrift --gen go:skip_remote -out .. ../../../clients/thrift/zdb.thrift

const (
	addressProperty = "zdb.address"
	addressDefault  = "127.0.0.1:9901"
	onlyField       = "field0"
	bufferBytes     = 64 << 10
	callTimeout     = 60 * time.Second
)

type connectionKey struct{}

// connection of a thread; opened by its first call, so that the call's error tells where it fails.
type connection struct {
	transport thrift.TTransport
	client    *zdb.ZDBServiceClient
}

type zdbCreator struct{}

// Create refuses records of several fields: they would need an encoding that the other side knows nothing of.
func (zdbCreator) Create(set *properties.Properties) (ycsb.DB, error) {
	if fields := set.GetInt(prop.FieldCount, 10); fields != 1 {
		return nil, fmt.Errorf("%s=%d: want 1", prop.FieldCount, fields)
	}
	prefix := set.GetString(prop.KeyPrefix, prop.KeyPrefixDefault)
	return &zdbDB{set.GetString(addressProperty, addressDefault), prefix}, nil
}

type zdbDB struct{ address, prefix string }

func (d *zdbDB) Close() error { return nil }

func (d *zdbDB) InitThread(ctx context.Context, _, _ int) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{})
}

func (d *zdbDB) CleanupThread(ctx context.Context) {
	if held, ok := ctx.Value(connectionKey{}).(*connection); ok && held.transport != nil {
		held.transport.Close()
	}
}

// client of this thread.
func (d *zdbDB) client(ctx context.Context) (*zdb.ZDBServiceClient, error) {
	held, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok {
		return nil, errors.New("a thread that was not begun")
	}
	if held.client == nil {
		limits := &thrift.TConfiguration{ConnectTimeout: callTimeout, SocketTimeout: callTimeout}
		transport := thrift.NewTBufferedTransport(thrift.NewTSocketConf(d.address, limits), bufferBytes)
		if err := transport.Open(); err != nil {
			return nil, err
		}
		held.transport = transport
		held.client = zdb.NewZDBServiceClientFactory(transport, thrift.NewTBinaryProtocolFactoryConf(limits))
	}
	return held.client, nil
}

// asked is the key as the service has it.
func (d *zdbDB) asked(key string) zdb.KType {
	return zdb.KType(strings.TrimPrefix(key, d.prefix))
}

func (d *zdbDB) Read(ctx context.Context, _, key string, _ []string) (map[string][]byte, error) {
	client, err := d.client(ctx)
	if err != nil {
		return nil, err
	}
	value, err := client.Get(ctx, d.asked(key))
	if err != nil {
		return nil, err
	}
	return map[string][]byte{onlyField: []byte(value)}, nil
}

// Update and Insert are both a put: the service has no other.
func (d *zdbDB) Update(ctx context.Context, _, key string, values map[string][]byte) error {
	client, err := d.client(ctx)
	if err != nil {
		return err
	}
	answer, err := client.Put(ctx, d.asked(key), zdb.VType(values[onlyField]))
	if err == nil && answer != 0 {
		err = fmt.Errorf("put of %s answered %d", key, answer)
	}
	return err
}

func (d *zdbDB) Insert(ctx context.Context, table, key string, values map[string][]byte) error {
	return d.Update(ctx, table, key, values)
}

func (d *zdbDB) Delete(ctx context.Context, _, key string) error {
	client, err := d.client(ctx)
	if err != nil {
		return err
	}
	_, err = client.Remove(ctx, d.asked(key))
	return err
}

func (d *zdbDB) Scan(context.Context, string, string, int, []string) ([]map[string][]byte, error) {
	return nil, errors.New("the service has no scans")
}

func init() { ycsb.RegisterDBCreator("zdb", zdbCreator{}) }
