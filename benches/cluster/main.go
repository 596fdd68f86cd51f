// Command cluster writes keys to three servers that hold the same, and says how fast that went.
//
//	cluster -system redis|etcd -address HOST:PORT[,HOST:PORT...] [-wait N] [-clients N] [-seconds N] [-bytes N]
//
// One client waits for its answer before it asks again. One line of JSON: rate, median and 99th percentile of the
// times. With -wait each SET of the Redis protocol is followed by WAIT N 0, sent with it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
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
	wait := flag.Int("wait", 0, "copies that WAIT asks for")
	flag.Parse()
	value := strings.Repeat("x", *bytes)
	var all []time.Duration
	var lock sync.Mutex
	var group sync.WaitGroup
	began := time.Now()
	end := began.Add(time.Duration(*seconds * float64(time.Second)))
	for number := 0; number < *clients; number++ {
		var one writer
		var err error
		if *system == "etcd" {
			one, err = etcd(strings.Split(*address, ","), value)
		} else {
			one, err = redis(*address, value, *wait)
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
				asked := time.Now()
				if err := one(fmt.Sprintf("key:%012d", (number*1000003+turn*7919)%*keys)); err != nil {
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
		"clients": *clients, "writes": len(all), "per_second": float64(len(all)) / took,
		"p50_ms": at(0.5), "p99_ms": at(0.99),
	})
	fmt.Println(string(line))
}
