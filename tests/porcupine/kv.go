// The model of key-value namespaces: the keys of a group, changed one by one or several at once.

package main

import (
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/anishathalye/porcupine"
)

// Keys, rows or blocks of a place.
const keysOfPlace = 4

// cells is the state of a place: a value for each key, empty if there is none.
type cells [keysOfPlace]string

func (c cells) hash() uint64 {
	sum := fnv.New64a()
	for _, cell := range c {
		sum.Write([]byte(cell))
		sum.Write([]byte{0})
	}
	return sum.Sum64()
}

// held gives a value as it stands in a cell.
func held(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

// with gives the state after values were written.
func (c cells) with(keys []int, values []*string) cells {
	for i, key := range keys {
		c[key] = held(values[i])
	}
	return c
}

// shows says whether these values were found under these keys.
func (c cells) shows(keys []int, found []*string) bool {
	if len(found) != len(keys) {
		return false
	}
	for i, key := range keys {
		if c[key] != held(found[i]) {
			return false
		}
	}
	return true
}

func cellsModel(step func(state cells, event *Event) (bool, cells)) porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return cells{} },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			event := input.(*Event)
			for _, key := range event.Keys {
				if key < 0 || key >= keysOfPlace {
					return false, state
				}
			}
			return step(state.(cells), event)
		},
		Hash:              func(state interface{}) uint64 { return state.(cells).hash() },
		DescribeOperation: func(input, _ interface{}) string { return input.(*Event).String() },
		DescribeState:     func(state interface{}) string { return fmt.Sprintf("%v", [keysOfPlace]string(state.(cells))) },
	}
}

// kvStep says whether a call may be answered so in this state, and what it leaves. Of an open call it says only what
// it leaves.
func kvStep(state cells, e *Event) (bool, cells) {
	first := state[e.Keys[0]]
	// A change of one key under a condition: made if it holds, else refused.
	changes := func(holds bool) (bool, cells) {
		if !holds {
			return e.Outcome != ok, state
		}
		if e.Call == "remove" {
			return e.Outcome != refused, state.with(e.Keys, []*string{nil})
		}
		return e.Outcome != refused, state.with(e.Keys, e.Values)
	}
	switch e.Call {
	case "get", "get_many":
		return state.shows(e.Keys, e.Found), state
	case "has":
		return (first != "") == (e.Outcome == ok), state
	case "put", "put_many":
		return e.Outcome != refused, state.with(e.Keys, e.Values)
	case "add":
		return changes(first == "")
	case "update", "remove":
		return changes(first != "")
	case "compare_and_set":
		return changes(first == held(e.When[0]))
	case "remove_many":
		there := int64(0)
		for _, key := range e.Keys {
			if state[key] != "" {
				there++
			}
		}
		return e.Open() || e.Number == there, state.with(e.Keys, make([]*string, len(e.Keys)))
	case "increment":
		number := int64(0)
		if first != "" {
			var err error
			if number, err = strconv.ParseInt(first, 10, 64); err != nil {
				return false, state
			}
		}
		number++
		text := strconv.FormatInt(number, 10)
		return e.Open() || e.Number == number, state.with(e.Keys, []*string{&text})
	case "transact":
		return e.Open() || state.shows(e.Keys, e.Found), state.with(e.Keys, e.Values)
	default:
		return false, state
	}
}

func kvPartitions(events []*Event) []partition {
	see(events, itself)
	return partitions(events, map[string]bool{"get": true, "get_many": true, "has": true}, cellsModel(kvStep))
}

// partitions makes one of each place.
func partitions(events []*Event, reads map[string]bool, model porcupine.Model) []partition {
	names, places := byPlace(events, reads)
	parts := make([]partition, 0, len(names))
	for _, name := range names {
		parts = append(parts, partition{name: name, events: places[name], model: model})
	}
	return parts
}
