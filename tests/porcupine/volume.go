// The model of an image: the blocks of one data object, the lock of the image, and what a kill of the server may take
// back.
//
// The state is the epoch of the lock and the contents since the last that is durable: a write that is only applied
// adds one, a write that is durable, a flush or a change of the lock leaves the last. A kill goes back to any of them.
// Whose write it took back must not be told of a flush that succeeded, before it was told of one that did not.

package main

import (
	"fmt"
	"hash/fnv"
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// content is what blocks hold, and the handle that wrote it without being told of its durability; none for others.
type content struct {
	blocks cells
	handle string
}

// image is a state; it is compared as text, so it is kept as such.
type image struct {
	epoch    int64
	contents string
	lost     string
}

// Between contents, between blocks, between handles. None of them is in a value.
const (
	betweenContents = ";"
	betweenBlocks   = ","
)

func written(contents []content) string {
	texts := make([]string, len(contents))
	for i, one := range contents {
		texts[i] = one.handle + betweenBlocks + strings.Join(one.blocks[:], betweenBlocks)
	}
	return strings.Join(texts, betweenContents)
}

func contentsOf(text string) []content {
	var contents []content
	for _, one := range strings.Split(text, betweenContents) {
		fields := strings.Split(one, betweenBlocks)
		next := content{handle: fields[0]}
		copy(next.blocks[:], fields[1:])
		contents = append(contents, next)
	}
	return contents
}

func (i image) isLost(handle string) bool {
	return strings.Contains(i.lost, betweenBlocks+handle+betweenBlocks)
}

// losing gives the state in which the handles have lost a write.
func (i image) losing(handles []string) image {
	all := strings.FieldsFunc(i.lost, func(r rune) bool { return string(r) == betweenBlocks })
	for _, handle := range handles {
		if handle != "" && !i.isLost(handle) {
			all = append(all, handle)
			i.lost += betweenBlocks + handle + betweenBlocks
		}
	}
	sort.Strings(all)
	i.lost = ""
	for _, handle := range all {
		i.lost += betweenBlocks + handle + betweenBlocks
	}
	return i
}

func (i image) told(handle string) image {
	i.lost = strings.Replace(i.lost, betweenBlocks+handle+betweenBlocks, "", 1)
	return i
}

// handleOf names the handle of a call.
func handleOf(e *Event) string {
	if e.Handle == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", e.Process, e.Handle)
}

func imageStep(state image, e *Event) []image {
	contents := contentsOf(state.contents)
	last := contents[len(contents)-1].blocks
	durable := state
	durable.contents = written([]content{{blocks: last}})
	switch e.Call {
	case "read":
		if last.shows(e.Keys, e.Found) {
			return []image{state}
		}
		return nil
	case "take_over":
		if e.Open() {
			// An epoch that no client knows, and none holds.
			durable.epoch = -e.Begin
			return []image{durable}
		}
		if e.Number <= state.epoch {
			return nil
		}
		durable.epoch = e.Number
		return []image{durable}
	case "write":
		if state.epoch != e.Held {
			if e.Outcome == ok {
				return nil
			}
			return []image{state}
		}
		if e.Outcome == refused {
			return nil
		}
		after := last.with(e.Keys, e.Values)
		// Who was shown a write that was to be durable was shown it when it was.
		if e.Handle == 0 && (e.Outcome == ok || e.seen > 0) {
			durable.contents = written([]content{{blocks: after}})
			return []image{durable}
		}
		by := handleOf(e)
		if e.Open() {
			// Its writer was told nothing.
			by = ""
		}
		state.contents = written(append(contents, content{after, by}))
		return []image{state}
	case "flush":
		if e.Outcome == refused {
			return []image{state.told(handleOf(e))}
		}
		if e.Outcome == ok && state.isLost(handleOf(e)) {
			return nil
		}
		return []image{durable}
	case "crash":
		var after []image
		for kept := range contents {
			var losers []string
			for _, one := range contents[kept+1:] {
				losers = append(losers, one.handle)
			}
			next := state.losing(losers)
			next.contents = written([]content{{blocks: contents[kept].blocks}})
			after = append(after, next)
		}
		return after
	default:
		return nil
	}
}

func imageModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{image{contents: written([]content{{}})}} },
		Step: func(state, input, _ interface{}) []interface{} {
			event := input.(*Event)
			for _, key := range event.Keys {
				if key < 0 || key >= keysOfPlace {
					return nil
				}
			}
			var states []interface{}
			for _, next := range imageStep(state.(image), event) {
				states = append(states, next)
			}
			return states
		},
		Hash: func(state interface{}) uint64 {
			one := state.(image)
			sum := fnv.New64a()
			fmt.Fprint(sum, one.epoch, one.contents, one.lost)
			return sum.Sum64()
		},
		DescribeOperation: func(input, _ interface{}) string { return input.(*Event).String() },
		DescribeState: func(state interface{}) string {
			one := state.(image)
			return fmt.Sprintf("epoch %d: %s lost: %s", one.epoch, one.contents, one.lost)
		},
	}
	return model.ToModel()
}

// flushesOf gives the flushes that matter to a place: those of handles that wrote there without being told of
// durability, until one that began after the last of these writes and was answered.
func flushesOf(place, flushes []*Event) []*Event {
	first, last := map[string]int64{}, map[string]int64{}
	for _, event := range place {
		if by := handleOf(event); event.Call == "write" && by != "" {
			if begin, known := first[by]; !known || event.Begin < begin {
				first[by] = event.Begin
			}
			last[by] = max64(last[by], event.until())
		}
	}
	done := map[string]bool{}
	var matter []*Event
	for _, flush := range flushes {
		by := handleOf(flush)
		begin, wrote := first[by]
		if !wrote || done[by] || flush.until() < begin {
			continue
		}
		matter = append(matter, flush)
		done[by] = flush.Shown() && flush.Begin > last[by]
	}
	return matter
}

// locksOf gives the changes of the lock that matter from a time on: those that were over, and followed by another that
// was over, do not.
func locksOf(locks []*Event, from int64) []*Event {
	latest := int64(0)
	for _, lock := range locks {
		if lock.until() < from {
			latest = max64(latest, lock.Begin)
		}
	}
	var matter []*Event
	for _, lock := range locks {
		if lock.until() >= latest {
			matter = append(matter, lock)
		}
	}
	return matter
}

// epochs finds an epoch that was given twice, or after a higher one.
func epochs(disk string, locks []*Event) []string {
	var order aLog
	var wrong []string
	given := map[int64]bool{}
	for _, lock := range locks {
		if lock.Outcome != ok {
			continue
		}
		order.above = append(order.above, mark{lock.Begin, lock.Number, lock})
		order.below = append(order.below, mark{lock.until(), lock.Number + 1, lock})
		if given[lock.Number] {
			wrong = append(wrong, fmt.Sprintf("%s: epoch %d was given twice", disk, lock.Number))
		}
		given[lock.Number] = true
	}
	return append(wrong, order.disorder(disk)...)
}

func volumePartitions(events []*Event) ([]partition, []string) {
	see(events, itself)
	names, places := byPlace(events, map[string]bool{"read": true})
	model := imageModel()
	var kills []*Event
	for _, event := range events {
		if event.Call == "crash" {
			kills = append(kills, event)
		}
	}
	flushes, locks := map[string][]*Event{}, map[string][]*Event{}
	var parts []partition
	var wrong []string
	for _, name := range names {
		if strings.Contains(name, "/") || name == "" {
			continue
		}
		for _, event := range places[name] {
			if event.Call == "flush" {
				flushes[name] = append(flushes[name], event)
			} else {
				locks[name] = append(locks[name], event)
			}
		}
		wrong = append(wrong, epochs(name, locks[name])...)
	}
	for _, name := range names {
		disk, _, isPlace := strings.Cut(name, "/")
		if !isPlace {
			continue
		}
		all := append([]*Event{}, places[name]...)
		from := all[0].Begin
		for _, event := range all {
			from = min64(from, event.Begin)
		}
		all = append(all, flushesOf(places[name], flushes[disk])...)
		all = append(all, locksOf(locks[disk], from)...)
		for _, kill := range kills {
			if kill.until() >= from {
				all = append(all, kill)
			}
		}
		parts = append(parts, partition{name: name, events: all, model: model})
	}
	return parts, wrong
}
