// Command ycsb runs one phase of a YCSB core workload by go-ycsb's library and prints what came of it as JSON.
//
// properties → workload and binding → threads that call in turn → histograms and processor times → JSON
//
// Bindings: zdb (ZDBService by Thrift, zdb.go) and go-ycsb's own for Cassandra.
//
// Invariants:
//  1. What is counted was acknowledged, and what was read had the length that records have.
//  2. Processor times are of the time that is counted, without the warm-up.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/client"
	"github.com/pingcap/go-ycsb/pkg/measurement"
	"github.com/pingcap/go-ycsb/pkg/prop"
	_ "github.com/pingcap/go-ycsb/pkg/workload"
	"github.com/pingcap/go-ycsb/pkg/ycsb"
)

// Ticks of a process's times in /proc per second: USER_HZ, the same on every Linux.
const ticksPerSecond = 100

// More operations than a phase of given time can make.
const unboundedOperations = "1000000000000"

type given struct {
	database  string
	phase     string
	seconds   int
	warmUp    int
	pid       int
	overrides []string
}

// Result of a phase.
type result struct {
	// Acknowledged operations, and how many of them a second.
	Count     int64   `json:"count"`
	PerSecond float64 `json:"per_second"`
	// Microseconds of processor time per operation: of the server, and of this program.
	ServerUS float64 `json:"server_us"`
	ClientUS float64 `json:"client_us"`
	// go-ycsb's own figures for each operation.
	Operations map[string]map[string]string `json:"operations"`
}

func main() {
	var asked given
	flag.StringVar(&asked.database, "db", "zdb", "binding: zdb or cassandra")
	flag.StringVar(&asked.phase, "phase", "run", "prepare (tables of Cassandra), load or run")
	flag.IntVar(&asked.seconds, "seconds", 10, "how long a run is counted")
	flag.IntVar(&asked.warmUp, "warm-up", 1, "seconds of a run before that")
	flag.IntVar(&asked.pid, "pid", 0, "process whose processor time is told (default none)")
	flag.Func("p", "NAME=VALUE: a property of YCSB or of the binding; may be repeated", func(pair string) error {
		if !strings.Contains(pair, "=") {
			return errors.New("want NAME=VALUE")
		}
		asked.overrides = append(asked.overrides, pair)
		return nil
	})
	flag.Parse()
	if err := carryOut(asked); err != nil {
		fmt.Fprintln(os.Stderr, "ycsb:", err)
		os.Exit(1)
	}
}

func carryOut(asked given) error {
	set := properties.NewProperties()
	for _, pair := range asked.overrides {
		name, value, _ := strings.Cut(pair, "=")
		if _, _, err := set.Set(name, value); err != nil {
			return fmt.Errorf("property %s: %w", pair, err)
		}
	}
	switch asked.phase {
	case "prepare":
		return prepareCassandra(set)
	case "load", "run":
	default:
		return fmt.Errorf("phase %q: want prepare, load or run", asked.phase)
	}
	loading := asked.phase == "load"
	fixed := map[string]string{
		prop.DoTransactions: strconv.FormatBool(!loading),
		prop.OutputStyle:    "json",
		// Summaries meanwhile would be printed between those of the end.
		prop.LogInterval: "1000000",
	}
	if !loading {
		fixed[prop.OperationCount] = unboundedOperations
		fixed[prop.WarmUpTime] = strconv.Itoa(asked.warmUp)
	}
	for name, value := range fixed {
		if _, _, err := set.Set(name, value); err != nil {
			return fmt.Errorf("property %s: %w", name, err)
		}
	}
	told, err := phase(set, asked, loading)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(told)
}

// phase runs it and reads go-ycsb's figures back.
func phase(set *properties.Properties, asked given, loading bool) (*result, error) {
	file, err := os.CreateTemp("", "esker-ycsb-*.json")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if _, _, err := set.Set(prop.MeasurementRawOutputFile, file.Name()); err != nil {
		return nil, err
	}
	creator := ycsb.GetDBCreator(asked.database)
	if creator == nil {
		return nil, fmt.Errorf("there is no binding %q", asked.database)
	}
	// go-ycsb prints to standard output, which is for the result here.
	out := os.Stdout
	os.Stdout = os.Stderr
	defer func() { os.Stdout = out }()
	bound, err := creator.Create(set)
	if err != nil {
		return nil, err
	}
	looked := &checked{DB: bound, bytes: set.GetInt(prop.FieldLength, int(prop.FieldLengthDefault))}
	database := client.DbWrapper{DB: looked}
	defer database.Close()
	workload, err := ycsb.GetWorkloadCreator("core").Create(set)
	if err != nil {
		return nil, err
	}
	measurement.InitMeasure(set)

	ctx := context.Background()
	times := make(chan [2]time.Duration, 1)
	if loading {
		times <- processorTimes(asked.pid)
	} else {
		warmUp := time.Duration(asked.warmUp) * time.Second
		time.AfterFunc(warmUp, func() { times <- processorTimes(asked.pid) })
		bounded, cancel := context.WithTimeout(ctx, warmUp+time.Duration(asked.seconds)*time.Second)
		defer cancel()
		ctx = bounded
	}
	client.NewClient(set, workload, database).Run(ctx)
	measurement.Output()
	after, before := processorTimes(asked.pid), <-times
	if failed := looked.first.Load(); failed != nil {
		return nil, fmt.Errorf("an operation failed: %w", *failed)
	}
	return summed(file.Name(), before, after)
}

func summed(path string, before, after [2]time.Duration) (*result, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rows []map[string]string
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, fmt.Errorf("go-ycsb's figures %q: %w", text, err)
	}
	told := &result{Operations: map[string]map[string]string{}}
	for _, row := range rows {
		told.Operations[row["Operation"]] = row
	}
	total := told.Operations["TOTAL"]
	if told.Count, err = strconv.ParseInt(total["Count"], 10, 64); err != nil || told.Count == 0 {
		return nil, fmt.Errorf("nothing was done: %s", text)
	}
	if told.PerSecond, err = strconv.ParseFloat(total["OPS"], 64); err != nil {
		return nil, err
	}
	each := func(which int) float64 {
		return float64((after[which] - before[which]).Microseconds()) / float64(told.Count)
	}
	told.ServerUS, told.ClientUS = each(0), each(1)
	return told, nil
}

// processorTimes of a process and of this one, of all their threads; 0 of a process that is not there.
func processorTimes(pid int) [2]time.Duration {
	of := func(pid int) time.Duration {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0
		}
		// The name, in brackets, may hold anything; behind it come the state and ten numbers, then the two times.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		var ticks int64
		for _, field := range fields[11:13] {
			each, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0
			}
			ticks += each
		}
		return time.Duration(ticks) * time.Second / ticksPerSecond
	}
	return [2]time.Duration{of(pid), of(os.Getpid())}
}

// checked is a binding whose calls are not cut off at the end of a run, whose reads are looked at, and which keeps its
// first error: go-ycsb counts them.
type checked struct {
	ycsb.DB
	bytes int
	first atomic.Pointer[error]
}

func (c *checked) kept(err error) error {
	if err != nil {
		c.first.CompareAndSwap(nil, &err)
	}
	return err
}

func (c *checked) Read(ctx context.Context, table, key string, fields []string) (map[string][]byte, error) {
	row, err := c.DB.Read(context.WithoutCancel(ctx), table, key, fields)
	if err != nil {
		return nil, c.kept(err)
	}
	if found := len(row[onlyField]); found != c.bytes {
		return nil, c.kept(fmt.Errorf("key %s has %d bytes where %d were written", key, found, c.bytes))
	}
	return row, nil
}

func (c *checked) Update(ctx context.Context, table, key string, values map[string][]byte) error {
	return c.kept(c.DB.Update(context.WithoutCancel(ctx), table, key, values))
}

func (c *checked) Insert(ctx context.Context, table, key string, values map[string][]byte) error {
	return c.kept(c.DB.Insert(context.WithoutCancel(ctx), table, key, values))
}
