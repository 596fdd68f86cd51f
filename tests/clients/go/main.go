// Does what a list of rows says with go-redis, and tells what each answer was. See ../README.md.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A step: how its commands are sent, and the commands.
type step struct {
	how      string
	commands [][]any
}

// UnmarshalJSON reads a pair.
func (s *step) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&s.how, &s.commands})
}

type row struct {
	Port           int
	TLS            bool
	CA, Cert, Key  string
	User, Password string
	Protocol       int
	Cluster        bool
	Replicas       bool
	Steps          []step
}

// An answer as all clients here show it.
func text(answer any) string {
	switch answer := answer.(type) {
	case nil:
		return "nil"
	case error:
		return errorText(answer)
	case []any:
		shown := make([]string, len(answer))
		for at, one := range answer {
			shown[at] = text(one)
		}
		return "[" + strings.Join(shown, ", ") + "]"
	case map[any]any:
		var pairs []any
		for name, value := range answer {
			pairs = append(pairs, name, value)
		}
		return text(pairs)
	default:
		return fmt.Sprint(answer)
	}
}

func errorText(err error) string {
	var told redis.Error
	switch {
	case errors.Is(err, redis.Nil):
		return "nil"
	case errors.As(err, &told):
		return told.Error()
	default:
		return "no connection"
	}
}

func answerOf(answer any, err error) string {
	if err != nil {
		return errorText(err)
	}
	return text(answer)
}

func client(r row) (redis.UniversalClient, error) {
	if r.Cluster {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs:    []string{fmt.Sprintf("127.0.0.1:%d", r.Port)},
			Protocol: r.Protocol,
			ReadOnly: r.Replicas,
		}), nil
	}
	options := &redis.Options{
		Addr:     fmt.Sprintf("127.0.0.1:%d", r.Port),
		Username: r.User,
		Password: r.Password,
		Protocol: r.Protocol,
		// One try: what is refused is to be seen as such.
		MaxRetries:      -1,
		DialerRetries:   1,
		PoolSize:        1,
		DialTimeout:     20 * time.Second,
		ReadTimeout:     20 * time.Second,
		DisableIdentity: false,
	}
	if !r.TLS {
		return redis.NewClient(options), nil
	}
	authority, err := os.ReadFile(r.CA)
	if err != nil {
		return nil, err
	}
	known := x509.NewCertPool()
	known.AppendCertsFromPEM(authority)
	options.TLSConfig = &tls.Config{RootCAs: known}
	if r.Cert != "" {
		pair, err := tls.LoadX509KeyPair(r.Cert, r.Key)
		if err != nil {
			return nil, err
		}
		// Whether or not the server names its authority: that is for the server to decide.
		options.TLSConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &pair, nil
		}
	}
	return redis.NewClient(options), nil
}

// Keys of a pattern that all heads have, in the order of their names.
func scan(ctx context.Context, db redis.UniversalClient, pattern string) []string {
	var lock sync.Mutex
	found := []string{}
	walk := func(ctx context.Context, one redis.Cmdable) error {
		keys := one.Scan(ctx, 0, pattern, 100).Iterator()
		for keys.Next(ctx) {
			lock.Lock()
			found = append(found, keys.Val())
			lock.Unlock()
		}
		return keys.Err()
	}
	var err error
	if cluster, is := db.(*redis.ClusterClient); is {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, one *redis.Client) error { return walk(ctx, one) })
	} else {
		err = walk(ctx, db)
	}
	if err != nil {
		return []string{errorText(err)}
	}
	sort.Strings(found)
	return found
}

// Writes for so long and reads back what was acknowledged; see the README for the answers.
func writes(ctx context.Context, db redis.UniversalClient, prefix string, seconds float64) []string {
	began := time.Now()
	acknowledged, until := began, began.Add(time.Duration(seconds*float64(time.Second)))
	var kept []int
	var failures []time.Time
	var pause, span time.Duration
	failed := ""
	for number := 0; time.Now().Before(until); number++ {
		err := db.Set(ctx, fmt.Sprintf("%s:%d", prefix, number), number, 0).Err()
		now := time.Now()
		if err != nil {
			failures = append(failures, now)
			failed = err.Error()
			time.Sleep(20 * time.Millisecond)
			continue
		}
		kept = append(kept, number)
		if now.Sub(acknowledged) > pause {
			pause = now.Sub(acknowledged)
		}
		acknowledged = now
	}
	missing := 0
	for _, number := range kept {
		if value, err := db.Get(ctx, fmt.Sprintf("%s:%d", prefix, number)).Int(); err != nil || value != number {
			missing++
		}
	}
	if len(failures) > 0 {
		span = failures[len(failures)-1].Sub(failures[0])
	}
	return []string{fmt.Sprint(len(kept)), fmt.Sprint(len(failures)), fmt.Sprint(span.Milliseconds()),
		fmt.Sprint(pause.Milliseconds()), fmt.Sprint(missing), failed}
}

func many(ctx context.Context, db redis.UniversalClient, commands [][]any, transaction bool) []string {
	send := db.Pipelined
	if transaction {
		send = db.TxPipelined
	}
	sent, err := send(ctx, func(pipeline redis.Pipeliner) error {
		for _, command := range commands {
			pipeline.Do(ctx, command...)
		}
		return nil
	})
	// Of a transaction that was not made there is one answer.
	if transaction && err != nil && !errors.Is(err, redis.Nil) {
		return []string{errorText(err)}
	}
	told := make([]string, len(sent))
	for at, one := range sent {
		told[at] = answerOf(one.(*redis.Cmd).Result())
	}
	return told
}

func answers(ctx context.Context, r row) []string {
	db, err := client(r)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	var told []string
	for _, step := range r.Steps {
		switch step.how {
		case "scan":
			told = append(told, scan(ctx, db, step.commands[0][0].(string))...)
			continue
		case "writes":
			seconds, err := strconv.ParseFloat(step.commands[0][1].(string), 64)
			if err != nil {
				log.Fatal(err)
			}
			told = append(told, writes(ctx, db, step.commands[0][0].(string), seconds)...)
			continue
		case "pipeline", "transaction":
			told = append(told, many(ctx, db, step.commands, step.how == "transaction")...)
			continue
		}
		for _, command := range step.commands {
			answer := answerOf(db.Do(ctx, command...).Result())
			if answer == "no connection" {
				return []string{answer}
			}
			told = append(told, answer)
		}
	}
	return told
}

func main() {
	var rows []row
	if err := json.NewDecoder(os.Stdin).Decode(&rows); err != nil {
		log.Fatal(err)
	}
	told := make([][]string, len(rows))
	for at, row := range rows {
		told[at] = answers(context.Background(), row)
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		log.Fatal(err)
	}
}
