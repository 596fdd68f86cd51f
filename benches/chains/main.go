// Command cluster writes keys to servers that hold the same, or reads them too, and says how fast that went.
//
//	cluster -system redis|etcd -address HOST:PORT[,HOST:PORT...] [-wait N] [-writes PERCENT] [-clients N] [-seconds N]
//
// One client waits for its answer before it asks again. One line of JSON: rate, median and 99th percentile of the
// times. With -wait each SET of the Redis protocol is followed by WAIT N 0, sent with it. With -writes below 100 the
// rest are reads of the Redis protocol: each client reads at one of the addresses, in turn, after READONLY, and writes at
// the first, which heads the chain, or where it reads with -apart.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

type writer func(key string) error

func redis(address string, value string, wait int) (writer, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	answers := bufio.NewReader(conn)
	return func(key string) error {
		question := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key, len(value), value)
		if wait > 0 {
			question += fmt.Sprintf("*3\r\n$4\r\nWAIT\r\n$1\r\n%d\r\n$1\r\n0\r\n", wait)
		}
		if _, err := conn.Write([]byte(question)); err != nil {
			return err
		}
		answer, err := answers.ReadString('\n')
		if err != nil {
			return err
		}
		if answer != "+OK\r\n" {
			return fmt.Errorf("SET: %s", strings.TrimSpace(answer))
		}
		if wait == 0 {
			return nil
		}
		if answer, err = answers.ReadString('\n'); err != nil {
			return err
		}
		if answer != fmt.Sprintf(":%d\r\n", wait) {
			return fmt.Errorf("WAIT: %s", strings.TrimSpace(answer))
		}
		return nil
	}, nil
}

// reader reads at a server, which may be a replica.
func reader(address string, readonly bool) (writer, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	answers := bufio.NewReader(conn)
	if readonly {
		if _, err := conn.Write([]byte("READONLY\r\n")); err != nil {
			return nil, err
		}
		if answer, err := answers.ReadString('\n'); err != nil || answer != "+OK\r\n" {
			return nil, fmt.Errorf("READONLY: %s %w", strings.TrimSpace(answer), err)
		}
	}
	var value []byte
	return func(key string) error {
		if _, err := fmt.Fprintf(conn, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key); err != nil {
			return err
		}
		answer, err := answers.ReadString('\n')
		if err != nil {
			return err
		}
		bytes := 0
		if _, err := fmt.Sscanf(answer, "$%d\r\n", &bytes); err != nil || bytes < 0 {
			return fmt.Errorf("GET %s: %s", key, strings.TrimSpace(answer))
		}
		if cap(value) < bytes+2 {
			value = make([]byte, bytes+2)
		}
		_, err = io.ReadFull(answers, value[:bytes+2])
		return err
	}, nil
}

func etcd(addresses []string, value string) (writer, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: addresses, DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	return func(key string) error {
		_, err := client.Put(context.Background(), key, value)
		return err
	}, nil
}

func main() {
	system := flag.String("system", "redis", "redis or etcd")
	address := flag.String("address", "127.0.0.1:6379", "where the servers are")
	clients := flag.Int("clients", 16, "clients at the same time")
	seconds := flag.Float64("seconds", 5, "for how long")
	bytes := flag.Int("bytes", 100, "of each value")
	keys := flag.Int("keys", 100000, "different keys")
	writes := flag.Int("writes", 100, "percent of the calls that write")
	apart := flag.Bool("apart", false, "the servers stand alone: each client works at one of them")
	wait := flag.Int("wait", 0, "copies that WAIT asks for")
	flag.Parse()
	value := strings.Repeat("x", *bytes)
	var all []time.Duration
	var lock sync.Mutex
	var group sync.WaitGroup
	began := time.Now()
	end := began.Add(time.Duration(*seconds * float64(time.Second)))
	addresses := strings.Split(*address, ",")
	for number := 0; number < *clients; number++ {
		var one, read writer
		var err error
		if *system == "etcd" {
			one, err = etcd(addresses, value)
		} else {
			at := number % len(addresses)
			head := 0
			if *apart {
				head = at
			}
			one, err = redis(addresses[head], value, *wait)
			if err == nil && *writes < 100 {
				read, err = reader(addresses[at], at != head)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		group.Add(1)
		go func(number int) {
			defer group.Done()
			var times []time.Duration
			for turn := 0; time.Now().Before(end); turn++ {
				asked, call := time.Now(), one
				if turn%100 >= *writes {
					call = read
				}
				if err := call(fmt.Sprintf("key:%012d", (number*1000003+turn*7919)%*keys)); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				times = append(times, time.Since(asked))
			}
			lock.Lock()
			all = append(all, times...)
			lock.Unlock()
		}(number)
	}
	group.Wait()
	took := time.Since(began).Seconds()
	sort.Slice(all, func(a, b int) bool { return all[a] < all[b] })
	at := func(part float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return all[int(float64(len(all)-1)*part)].Seconds() * 1e3
	}
	line, _ := json.Marshal(map[string]any{
		"clients": *clients, "calls": len(all), "per_second": float64(len(all)) / took,
		"p50_ms": at(0.5), "p99_ms": at(0.99),
	})
	fmt.Println(string(line))
}
