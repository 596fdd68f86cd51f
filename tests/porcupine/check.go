// Checking partitions: each is a history of its own with a model, and all of them have to be linearizable.
//
// partition -> without doubtful calls, then with them -> linearizable, not linearizable, undecided

package main

import (
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// partition is a history that is linearizable by itself or not.
type partition struct {
	name   string
	events []*Event
	model  porcupine.Model
}

// verdict is what is said of a face.
type verdict struct {
	operations, partitions int
	// Calls of unknown outcome: those of which a client was shown that they were made, and the others.
	seen, doubtful int
	// What is wrong, or could not be decided; empty if nothing is.
	wrong []string
	took  time.Duration
}

// Most partitions that are named one by one where a face is wrong.
const namedMax = 10

// operations gives the calls as Porcupine takes them.
func operations(events []*Event, doubtful bool) []porcupine.Operation {
	last := int64(0)
	for _, event := range events {
		last = max64(last, event.Begin)
		if !event.doubtful() {
			last = max64(last, event.until())
		}
	}
	clients, next := map[int64]int{}, 0
	var all []porcupine.Operation
	for _, event := range events {
		if event.doubtful() && !doubtful {
			continue
		}
		client, known := clients[event.Process]
		if !known || event.Open() {
			// A process goes on while a call of it is open: that one has a line of its own.
			client, next = next, next+1
			if !event.Open() {
				clients[event.Process] = client
			}
		}
		end := event.until()
		if end == math.MaxInt64 {
			end = last + 1
		}
		all = append(all, porcupine.Operation{
			ClientId: client, Input: event, Output: event, Call: event.Begin, Return: max64(end, event.Begin),
		})
	}
	return all
}

// decide says whether a partition is linearizable, and with which calls that was tried last.
func decide(part partition, limit time.Duration) (porcupine.CheckResult, []porcupine.Operation) {
	calls := operations(part.events, false)
	result := porcupine.CheckOperationsTimeout(part.model, calls, limit)
	if result == porcupine.Ok {
		return result, calls
	}
	all := operations(part.events, true)
	if len(all) == len(calls) {
		return result, calls
	}
	return porcupine.CheckOperationsTimeout(part.model, all, limit), all
}

// checkAll checks partitions on all processors, and writes pictures of those that are wrong into the folder.
func checkAll(face string, parts []partition, limit time.Duration, folder string) []string {
	var wrong []string
	var lock sync.Mutex
	queue := make(chan partition)
	var workers sync.WaitGroup
	for i := 0; i < runtime.NumCPU(); i++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for part := range queue {
				result, calls := decide(part, limit)
				if result == porcupine.Ok {
					continue
				}
				lock.Lock()
				wrong = append(wrong, describe(face, part, result, calls, limit, folder, len(wrong) < namedMax))
				lock.Unlock()
			}
		}()
	}
	for _, part := range parts {
		queue <- part
	}
	close(queue)
	workers.Wait()
	return wrong
}

// describe says what is wrong with a partition, and draws it.
func describe(face string, part partition, result porcupine.CheckResult, calls []porcupine.Operation,
	limit time.Duration, folder string, draw bool) string {
	word := "not linearizable"
	if result == porcupine.Unknown {
		word = fmt.Sprintf("undecided after %v", limit)
	}
	text := fmt.Sprintf("%s %s: %s (%d calls)", face, part.name, word, len(calls))
	if !draw || folder == "" {
		return text
	}
	_, info := porcupine.CheckOperationsVerbose(part.model, calls, limit)
	path := filepath.Join(folder, face+"-"+strings.NewReplacer("/", "-", " ", "-").Replace(part.name)+".html")
	if err := porcupine.VisualizePath(part.model, info, path); err != nil {
		return fmt.Sprintf("%s; no picture: %v", text, err)
	}
	return fmt.Sprintf("%s; see %s", text, path)
}

// faults names errors that no client should ever have been told.
func faults(events []*Event) []string {
	var wrong []string
	for _, event := range events {
		if event.Outcome == fault && len(wrong) < namedMax {
			wrong = append(wrong, fmt.Sprintf("%s at %s: a fault was told: %s", event.Call, event.Place, event.Why))
		}
	}
	return wrong
}

// judge checks the history of a face.
func judge(face string, events []*Event, limit time.Duration, folder string) verdict {
	began := time.Now()
	wrong := faults(events)
	var parts []partition
	// What is wrong over all partitions.
	var disordered []string
	switch face {
	case "kv", "thrift":
		parts = kvPartitions(events)
	case "map":
		parts = mapPartitions(events)
	case "log":
		parts, disordered = logPartitions(events)
	case "volume":
		parts, disordered = volumePartitions(events)
	default:
		wrong = append(wrong, "no such face: "+face)
	}
	wrong = append(wrong, disordered...)
	said := verdict{partitions: len(parts), wrong: append(wrong, checkAll(face, parts, limit, folder)...)}
	for _, event := range events {
		said.operations++
		if event.Open() && event.seen > 0 {
			said.seen++
		} else if event.Open() {
			said.doubtful++
		}
	}
	said.took = time.Since(began)
	return said
}

func max64(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}

func min64(a, b int64) int64 {
	if a < b {
		return a
	}
	return b
}
