// The checker is right: good histories are accepted, and each anomaly that a faulty store would leave is found.

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// none is a value that is not there.
const none = "none"

func texts(values ...string) []*string {
	var all []*string
	for _, value := range values {
		value := value
		if value == none {
			all = append(all, nil)
		} else {
			all = append(all, &value)
		}
	}
	return all
}

// line makes a call of a process from begin to end; an end of 0 is none.
func line(process, begin, end int64, call, place, outcome string, keys ...int) *Event {
	event := &Event{Process: process, Begin: begin, Call: call, Place: place, Outcome: outcome, Keys: keys}
	if end > 0 {
		event.End = &end
	}
	return event
}

func (e *Event) writing(values ...string) *Event   { e.Values = texts(values...); return e }
func (e *Event) finding(values ...string) *Event   { e.Found = texts(values...); return e }
func (e *Event) under(conditions ...string) *Event { e.When = texts(conditions...); return e }
func (e *Event) numbered(number int64) *Event      { e.Number = number; return e }
func (e *Event) holding(held int64) *Event         { e.Held = held; return e }
func (e *Event) by(handle int64) *Event            { e.Handle = handle; return e }
func (e *Event) because(why string) *Event         { e.Why = why; return e }
func put1(process, begin, end int64, v string) *Event {
	return line(process, begin, end, "put", "n/1", ok, 0).writing(v)
}
func get1(process, begin, end int64, v string) *Event {
	return line(process, begin, end, "get", "n/1", ok, 0).finding(v)
}

// history is a history with what is to be said of it.
type history struct {
	name  string
	good  bool
	calls []*Event
}

func check(t *testing.T, face string, histories []history) {
	t.Helper()
	for _, one := range histories {
		said := judge(face, one.calls, 10*time.Second, "")
		if good := len(said.wrong) == 0; good != one.good {
			t.Errorf("%s, %s: good is %v, expected %v: %v", face, one.name, good, one.good, said.wrong)
		}
	}
}

func TestKeys(t *testing.T) {
	check(t, "kv", []history{
		{"in turn", true, []*Event{put1(1, 1, 2, "a"), get1(2, 3, 4, "a"), put1(1, 5, 6, "b"), get1(2, 7, 8, "b")}},
		{"at the same time, either may be seen", true, []*Event{put1(1, 1, 9, "a"), get1(2, 2, 3, none), get1(2, 4, 5, "a")}},
		{"stale read", false, []*Event{put1(1, 1, 2, "a"), put1(1, 3, 4, "b"), get1(2, 5, 6, "a")}},
		{"a read goes back", false, []*Event{put1(1, 1, 2, "a"), put1(1, 3, 20, "b"), get1(2, 5, 6, "b"), get1(3, 7, 8, "a")}},
		{"lost write", false, []*Event{put1(1, 1, 2, "a"), get1(2, 3, 4, none)}},
		{"applied twice", false, []*Event{
			put1(1, 1, 2, "a"), put1(2, 3, 4, "b"), get1(3, 5, 6, "b"), get1(3, 7, 8, "a"),
		}},
		{"a value that no client wrote", false, []*Event{put1(1, 1, 2, "a"), get1(2, 3, 4, "c")}},
		{"unknown and not made", true, []*Event{
			line(1, 1, 0, "put", "n/1", unknown, 0).writing("a"), get1(2, 3, 4, none), get1(2, 5, 6, none),
		}},
		{"unknown and made late", true, []*Event{
			line(1, 1, 0, "put", "n/1", unknown, 0).writing("a"), get1(2, 3, 4, none), get1(2, 5, 6, "a"),
		}},
		{"unknown, made twice", false, []*Event{
			line(1, 1, 0, "put", "n/1", unknown, 0).writing("a"), get1(2, 3, 4, "a"), put1(2, 5, 6, "b"), get1(3, 7, 8, "a"),
		}},
		{"unknown and unseen, but needed", true, []*Event{
			line(1, 1, 0, "put", "n/1", unknown, 0).writing("a"), line(2, 3, 4, "add", "n/1", refused, 0).writing("b"),
		}},
		{"an error that changed something", false, []*Event{
			line(1, 1, 2, "put", "n/1", failed, 0).writing("a"), get1(2, 3, 4, "a"),
		}},
		{"refused, but applied", false, []*Event{
			put1(1, 1, 2, "a"),
			line(1, 3, 4, "compare_and_set", "n/1", refused, 0).under("x").writing("b"), get1(2, 5, 6, "b"),
		}},
		{"refused, though it held", false, []*Event{
			put1(1, 1, 2, "a"),
			line(1, 3, 4, "compare_and_set", "n/1", refused, 0).under("a").writing("b"),
		}},
		{"two compare-and-sets win", false, []*Event{
			put1(1, 1, 2, "a"),
			line(1, 3, 6, "compare_and_set", "n/1", ok, 0).under("a").writing("b"),
			line(2, 4, 7, "compare_and_set", "n/1", ok, 0).under("a").writing("c"),
		}},
		{"conditions", true, []*Event{
			line(1, 1, 2, "update", "n/1", refused, 0).writing("a"), line(1, 3, 4, "add", "n/1", ok, 0).writing("b"),
			line(1, 5, 6, "add", "n/1", refused, 0).writing("c"), line(1, 7, 8, "update", "n/1", ok, 0).writing("d"),
			line(1, 9, 10, "has", "n/1", ok, 0), line(1, 11, 12, "remove", "n/1", ok, 0),
			line(1, 13, 14, "has", "n/1", refused, 0), line(1, 15, 16, "remove", "n/1", refused, 0),
			line(1, 17, 18, "compare_and_set", "n/1", ok, 0).under(none).writing("e"), get1(1, 19, 20, "e"),
		}},
		{"several at once", true, []*Event{
			line(1, 1, 2, "put_many", "n/1", ok, 0, 2).writing("a", "b"),
			line(2, 3, 4, "get_many", "n/1", ok, 0, 1, 2).finding("a", none, "b"),
			line(2, 5, 6, "transact", "n/1", ok, 1, 2).finding(none, "b").writing("c", none),
			line(1, 7, 8, "remove_many", "n/1", ok, 0, 2).numbered(1),
			line(1, 9, 10, "get_many", "n/1", ok, 0, 1, 2).finding(none, "c", none),
		}},
		{"half of several", false, []*Event{
			line(1, 1, 9, "put_many", "n/1", ok, 0, 2).writing("a", "b"),
			line(2, 3, 4, "get_many", "n/1", ok, 0, 2).finding("a", none),
		}},
		{"removed too few", false, []*Event{
			line(1, 1, 2, "put_many", "n/1", ok, 0, 2).writing("a", "b"),
			line(1, 7, 8, "remove_many", "n/1", ok, 0, 2).numbered(1),
		}},
		{"a transaction read what was old", false, []*Event{
			put1(1, 1, 2, "a"), put1(1, 3, 4, "b"), line(2, 5, 6, "transact", "n/1", ok, 0, 1).finding("a", none).writing("c", "d"),
		}},
		{"damage", false, []*Event{line(1, 1, 2, "get", "n/1", fault, 0).because("corrupt")}},
	})
}

func mutate(process, begin, end int64, outcome string, keys ...int) *Event {
	return line(process, begin, end, "mutate", "7", outcome, keys...)
}

func TestCounters(t *testing.T) {
	add := func(process, begin, end, number int64) *Event {
		return line(process, begin, end, "increment", "c/1", ok, 0).numbered(number)
	}
	lost := func(process, begin int64) *Event { return line(process, begin, 0, "increment", "c/1", unknown, 0) }
	get := func(process, begin, end int64, v string) *Event {
		return line(process, begin, end, "get", "c/1", ok, 0).finding(v)
	}
	check(t, "kv", []history{
		{"in turn", true, []*Event{add(1, 1, 2, 1), add(2, 3, 4, 2), get(1, 5, 6, "2")}},
		{"removed between", true, []*Event{add(1, 1, 2, 1), line(1, 3, 4, "remove", "c/1", ok, 0), add(2, 5, 6, 1)}},
		{"the same number twice", false, []*Event{add(1, 1, 2, 1), add(2, 3, 4, 1)}},
		{"a number is left out", false, []*Event{add(1, 1, 2, 1), add(2, 3, 4, 3)}},
		{"unknown and made", true, []*Event{add(1, 1, 2, 1), lost(1, 3), add(2, 4, 5, 3)}},
		{"unknown and not made", true, []*Event{add(1, 1, 2, 1), lost(1, 3), add(2, 4, 5, 2)}},
		{"unknown and made twice", false, []*Event{add(1, 1, 2, 1), lost(1, 3), add(2, 4, 5, 4)}},
		{"lost after it was read", false, []*Event{add(1, 1, 2, 1), get(2, 3, 4, "1"), get(2, 5, 6, none)}},
	})
}

func TestRows(t *testing.T) {
	row := func(begin, end int64, key int, found string) *Event {
		return line(9, begin, end, "get", "7", ok, key).finding(found)
	}
	check(t, "map", []history{
		{"columns and conditions", true, []*Event{
			mutate(1, 1, 2, ok, 0).under("absent").writing("a|-"), row(3, 4, 0, "a|-"),
			mutate(1, 5, 6, ok, 0).under("=a").writing("-|b"), row(7, 8, 0, "a|b"),
			mutate(1, 9, 10, refused, 0).under("=x").writing("c|c").finding("a|b"),
			mutate(1, 11, 12, refused, 1, 0).under(none, "absent").writing("d|-", "e|-").numbered(1).finding("a|b"),
			line(2, 13, 14, "scan", "7", ok, 0, 1, 2, 3).finding("a|b", none, none, none),
			mutate(1, 15, 16, ok, 0, 1).under("exists", none).writing(none, "f|-"),
			line(2, 17, 18, "scan", "7", ok, 0, 1, 2, 3).finding(none, "f|-", none, none),
		}},
		{"stale read", false, []*Event{
			mutate(1, 1, 2, ok, 0).under(none).writing("a|-"), mutate(1, 3, 4, ok, 0).under(none).writing("b|-"), row(5, 6, 0, "a|-"),
		}},
		{"lost write", false, []*Event{mutate(1, 1, 2, ok, 0).under(none).writing("a|-"), row(5, 6, 0, none)}},
		{"lost column", false, []*Event{
			mutate(1, 1, 2, ok, 0).under(none).writing("a|-"), mutate(2, 3, 4, ok, 0).under(none).writing("-|b"), row(5, 6, 0, "-|b"),
		}},
		{"applied twice", false, []*Event{
			mutate(1, 1, 0, unknown, 0).under(none).writing("a|-"), row(2, 3, 0, "a|-"),
			mutate(2, 4, 5, ok, 0).under(none).writing(none), row(6, 7, 0, none), row(8, 9, 0, "a|-"),
		}},
		{"refused, but applied", false, []*Event{
			mutate(1, 1, 2, refused, 0).under("exists").writing("a|-").finding(none), row(3, 4, 0, "a|-"),
		}},
		{"refused, with a row that was not there", false, []*Event{
			mutate(1, 1, 2, ok, 0).under(none).writing("a|-"),
			mutate(1, 3, 4, refused, 0).under("absent").writing("b|-").finding("c|-"),
		}},
		{"half of several", false, []*Event{
			mutate(1, 1, 9, ok, 0, 1).under(none, none).writing("a|-", "b|-"),
			line(2, 3, 4, "scan", "7", ok, 0, 1, 2, 3).finding("a|-", none, none, none),
		}},
		{"unknown, seen in another column", true, []*Event{
			mutate(1, 1, 0, unknown, 0).under(none).writing("-|b"), mutate(2, 2, 3, ok, 0).under(none).writing("a|-"), row(4, 5, 0, "a|b"),
		}},
	})
}

func TestPositions(t *testing.T) {
	append1 := func(process, begin, end, position int64, values ...string) *Event {
		return line(process, begin, end, "append", "l", ok).writing(values...).numbered(position)
	}
	read := func(begin, end, position int64, found ...string) *Event {
		return line(9, begin, end, "read", "l", ok).holding(position).finding(found...)
	}
	tail := func(begin, end, position int64) *Event {
		return line(9, begin, end, "tail", "l", ok).numbered(position)
	}
	check(t, "log", []history{
		{"in order", true, []*Event{
			append1(1, 1, 2, 0, "a"), append1(2, 1, 3, 1, "b", "c"), read(4, 5, 0, "a", "b", "c", "beyond"), tail(6, 7, 3),
			append1(1, 8, 9, 4, "d"), read(10, 11, 3, "hole", "d"), read(12, 13, 3, "filled"),
			line(1, 14, 15, "trim_to", "l", ok).holding(2), read(16, 17, 0, "trimmed", "trimmed", "c"),
		}},
		{"two entries at one position", false, []*Event{append1(1, 1, 4, 0, "a"), append1(2, 2, 3, 0, "b")}},
		{"lost entry", false, []*Event{append1(1, 1, 2, 0, "a"), read(3, 4, 0, "beyond")}},
		{"lost entry, filled", false, []*Event{append1(1, 1, 2, 0, "a"), read(3, 4, 0, "filled")}},
		{"a filled position is written", false, []*Event{append1(1, 1, 9, 0, "a"), read(2, 3, 0, "filled"), read(10, 11, 0, "a")}},
		{"another entry than was appended", false, []*Event{append1(1, 1, 2, 0, "a"), read(3, 4, 0, "b")}},
		{"below what was answered before", false, []*Event{append1(1, 1, 2, 5, "a"), append1(2, 3, 4, 4, "b")}},
		{"at the same time, in any order", true, []*Event{append1(1, 1, 3, 5, "a"), append1(2, 2, 4, 4, "b")}},
		{"a tail goes back", false, []*Event{tail(1, 2, 5), tail(3, 4, 4)}},
		{"a tail that leaves an entry out", false, []*Event{append1(1, 1, 2, 5, "a"), tail(3, 4, 5)}},
		{"an append below a tail", false, []*Event{tail(1, 2, 5), append1(1, 3, 4, 4, "a")}},
		{"below what was read before", false, []*Event{
			line(1, 1, 0, "append", "l", unknown).writing("a"), read(2, 3, 7, "a"), append1(2, 4, 5, 6, "b"),
		}},
		{"nothing below a tail", false, []*Event{tail(1, 2, 5), read(3, 4, 4, "hole")}},
		{"refused at a tail that leaves an entry out", false, []*Event{
			append1(1, 1, 2, 5, "a"), line(2, 3, 4, "append_at", "l", refused).writing("b").holding(3).numbered(4),
		}},
		{"refused, but applied", false, []*Event{
			append1(1, 1, 2, 5, "a"), line(2, 3, 4, "append_at", "l", refused).writing("b").holding(3).numbered(6), read(5, 6, 6, "b"),
		}},
		{"an entry after a trim", false, []*Event{
			append1(1, 1, 2, 0, "a"), line(1, 3, 4, "trim_to", "l", ok).holding(1), read(5, 6, 0, "a"),
		}},
		{"trimmed by no client", false, []*Event{append1(1, 1, 2, 0, "a"), read(5, 6, 0, "trimmed")}},
		{"a trim with an error may have been made", true, []*Event{
			append1(1, 1, 2, 0, "a"), line(1, 3, 4, "trim_to", "l", failed).holding(1), read(5, 6, 0, "a"), read(7, 8, 0, "trimmed"),
		}},
		{"unknown, and read", true, []*Event{
			line(1, 1, 0, "append", "l", unknown).writing("a", "b"), read(2, 3, 4, "hole", "b"), read(4, 5, 3, "filled", "a", "b"),
		}},
		{"unknown, and at two positions", false, []*Event{
			line(1, 1, 0, "append", "l", unknown).writing("a"), read(2, 3, 3, "a"), read(4, 5, 4, "a"),
		}},
		{"an error, but applied", false, []*Event{line(1, 1, 2, "append", "l", failed).writing("a"), read(3, 4, 0, "a")}},
		{"a fill is refused where nothing stands", false, []*Event{line(1, 1, 2, "fill", "l", refused).holding(3)}},
		{"a fill is refused by what was trimmed unread", true, []*Event{
			line(1, 1, 0, "append", "l", unknown).writing("a"), line(2, 2, 3, "fill", "l", refused).holding(3),
			line(2, 4, 5, "trim_to", "l", ok).holding(9), read(6, 7, 3, "trimmed"),
		}},
		{"a fill is refused by what was appended later", false, []*Event{
			line(2, 1, 2, "fill", "l", refused).holding(3), line(1, 3, 0, "append", "l", unknown).writing("a"),
		}},
		{"a fill is refused by what is not there later", false, []*Event{
			line(1, 1, 0, "append", "l", unknown).writing("a"), line(2, 2, 3, "fill", "l", refused).holding(3), read(4, 5, 3, "hole"),
		}},
		{"a fill is refused by what was read elsewhere", false, []*Event{
			line(1, 1, 0, "append", "l", unknown).writing("a"), line(2, 2, 3, "fill", "l", refused).holding(3), read(4, 5, 4, "a"),
		}},
		{"a fill is refused by what was trimmed, or appended unread", true, []*Event{
			line(1, 1, 0, "trim_to", "l", unknown).holding(5), read(2, 3, 3, "trimmed"),
			line(1, 4, 0, "append", "l", unknown).writing("a"), line(2, 5, 6, "fill", "l", refused).holding(3),
		}},
		{"a fill is refused below a tail that was told before anything was appended", false, []*Event{
			tail(1, 2, 5), line(1, 3, 0, "append", "l", unknown).writing("a"), line(2, 4, 5, "fill", "l", refused).holding(3),
		}},
		{"a fill is refused by what was to be appended elsewhere", false, []*Event{
			line(1, 1, 0, "append_at", "l", unknown).writing("a").holding(4), line(2, 2, 3, "fill", "l", refused).holding(3),
		}},
	})
}

func TestBlocks(t *testing.T) {
	take := func(process, begin, end, epoch int64) *Event {
		return line(process, begin, end, "take_over", "d", ok).numbered(epoch)
	}
	write := func(process, begin, end, epoch, handle int64, outcome, value string) *Event {
		return line(process, begin, end, "write", "d/3", outcome, 1).writing(value).holding(epoch).by(handle)
	}
	read := func(begin, end int64, found string) *Event {
		return line(9, begin, end, "read", "d/3", ok, 1).finding(found)
	}
	flush := func(process, begin, end, handle int64, outcome string) *Event {
		return line(process, begin, end, "flush", "d", outcome).by(handle)
	}
	crash := func(begin, end int64) *Event { return line(999, begin, end, "crash", "", ok) }
	check(t, "volume", []history{
		{"in turn", true, []*Event{
			take(1, 1, 2, 1), write(1, 3, 4, 1, 0, ok, "a"), crash(5, 6), read(7, 8, "a"),
			take(2, 9, 10, 2), write(1, 11, 12, 1, 0, refused, "b"), write(2, 13, 14, 2, 0, ok, none), read(15, 16, none),
		}},
		{"stale read", false, []*Event{
			take(1, 1, 2, 1), write(1, 3, 4, 1, 0, ok, "a"), write(1, 5, 6, 1, 0, ok, "b"), read(7, 8, "a"),
		}},
		{"lost write", false, []*Event{take(1, 1, 2, 1), write(1, 3, 4, 1, 0, ok, "a"), crash(5, 6), read(7, 8, none)}},
		{"applied only, and lost", true, []*Event{take(1, 1, 2, 1), write(1, 3, 4, 1, 5, ok, "a"), crash(5, 6), read(7, 8, none)}},
		{"applied only, and kept", true, []*Event{take(1, 1, 2, 1), write(1, 3, 4, 1, 5, ok, "a"), crash(5, 6), read(7, 8, "a")}},
		{"applied only, and lost without a kill", false, []*Event{take(1, 1, 2, 1), write(1, 3, 4, 1, 5, ok, "a"), read(7, 8, none)}},
		{"lost and then back", false, []*Event{
			take(1, 1, 2, 1), write(1, 3, 4, 1, 5, ok, "a"), crash(5, 6), read(7, 8, none), read(9, 10, "a"),
		}},
		{"flushed, and lost", false, []*Event{
			take(1, 1, 2, 1), write(1, 3, 4, 1, 5, ok, "a"), flush(1, 5, 6, 5, ok), crash(7, 8), read(9, 10, none),
		}},
		{"durable, so what was before is", false, []*Event{
			take(1, 1, 2, 1), write(1, 3, 4, 1, 5, ok, "a"),
			line(1, 5, 6, "write", "d/3", ok, 0).writing("b").holding(1), crash(7, 8), read(9, 10, none),
		}},
		{"lost, and the flush does not say so", false, []*Event{
			take(1, 1, 2, 1), write(1, 3, 4, 1, 5, ok, "a"), crash(5, 6), flush(1, 7, 8, 5, ok), read(9, 10, none),
		}},
		{"lost, and the flush says so", true, []*Event{
			take(1, 1, 2, 1), write(1, 3, 4, 1, 5, ok, "a"), crash(5, 6), flush(1, 7, 8, 5, refused), flush(1, 9, 10, 5, ok), read(11, 12, none),
		}},
		{"a write by a lock that was lost", false, []*Event{
			take(1, 1, 2, 1), take(2, 3, 4, 2), write(1, 5, 6, 1, 0, ok, "a"),
		}},
		{"refused, but applied", false, []*Event{
			take(1, 1, 2, 1), take(2, 3, 4, 2), write(1, 5, 6, 1, 0, refused, "a"), read(7, 8, "a"),
		}},
		{"refused, though the lock was held", false, []*Event{take(1, 1, 2, 1), write(1, 5, 6, 1, 0, refused, "a")}},
		{"refused by a lock that no client was told of", true, []*Event{
			take(1, 1, 2, 1), line(2, 3, 0, "take_over", "d", unknown), write(1, 5, 6, 1, 0, refused, "a"), read(7, 8, none),
		}},
		{"an epoch twice", false, []*Event{take(1, 1, 2, 1), take(2, 3, 4, 1), write(2, 5, 6, 1, 0, ok, "a")}},
		{"unknown, made twice", false, []*Event{
			take(1, 1, 2, 1), write(1, 3, 0, 1, 0, unknown, "a"), read(4, 5, "a"), write(1, 6, 7, 1, 0, ok, "b"), read(8, 9, "a"),
		}},
		{"unknown, seen, and lost", false, []*Event{
			take(1, 1, 2, 1), write(1, 3, 0, 1, 0, unknown, "a"), read(4, 5, "a"), crash(6, 7), read(8, 9, none),
		}},
		{"torn", false, []*Event{take(1, 1, 2, 1), write(1, 3, 4, 1, 0, ok, "a"), read(4, 5, "torn: a")}},
	})
}

// A faulty history is told with its file, and a picture of it is there.
func TestAWrongHistoryIsDrawn(t *testing.T) {
	folder := t.TempDir()
	lines := `{"process":1,"begin":1,"end":2,"call":"put","place":"n/1","keys":[0],"values":["a"],"outcome":"ok"}
{"process":2,"begin":3,"end":4,"call":"get","place":"n/1","keys":[0],"outcome":"ok","found":[null]}
{"process":2,"begin":5,"end":null,"call":"put","place":"n/1","keys":[0],"values":["b"],"outcome":"unknown"}
`
	if err := os.WriteFile(filepath.Join(folder, "kv.jsonl"), []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := run(folder, time.Second); code != 1 {
		t.Errorf("code %d, expected 1", code)
	}
	picture, err := os.ReadFile(filepath.Join(folder, "kv-n-1.html"))
	if err != nil || !strings.Contains(string(picture), "put") {
		t.Errorf("no picture: %v", err)
	}
	if code := run(t.TempDir(), time.Second); code != 2 {
		t.Errorf("code %d of an empty folder, expected 2", code)
	}
}

// A history that Porcupine cannot decide in time is a failure, and named so.
func TestUndecidedIsWrong(t *testing.T) {
	var calls []*Event
	for i := int64(0); i < 40; i++ {
		value := string(rune('A' + i))
		calls = append(calls, put1(i, 1, 1_000, value))
	}
	calls = append(calls, get1(99, 2_000, 2_001, "nobody's"))
	said := judge("kv", calls, 50*time.Millisecond, "")
	if len(said.wrong) != 1 || !strings.Contains(said.wrong[0], "undecided") {
		t.Errorf("%v", said.wrong)
	}
}
