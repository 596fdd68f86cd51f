// The model of a log: each position by itself is written once, filled or trimmed; and over all positions their order
// is that of time.
//
// A position: nothing -> entry or filled -> trimmed. Any client may fill what is open, unseen, when no call says so: a
// position that is shown as filled was filled by then. An append whose answer was lost may have written an entry that
// was trimmed before a client read it: then only the clients that were refused its position tell of it. The order: what
// is appended after an answer stands above everything that the answer showed (an entry, or the tail), and so does every
// tail that is told.

package main

import (
	"fmt"
	"math"
	"sort"

	"github.com/anishathalye/porcupine"
)

// Marks of a position: what a read tells, and what the model keeps.
const (
	nothing = ""
	filled  = "filled"
	trimmed = "trimmed"
)

// Calls on one position, beside read, trim and fill.
const (
	writes = "write"
	// Something stands there: it is right below a tail that was told.
	stands = "stands"
	// An entry of an append whose answer was lost, which no client has read: it may stand at any position that is open.
	unread = "unread"
)

func positionStep(state string, e *Event) (bool, string) {
	switch e.Call {
	case writes:
		return state == nothing, *e.Values[0]
	case "read":
		switch found := *e.Found[0]; found {
		case "hole", "beyond":
			return state == nothing, state
		case filled:
			return state == nothing || state == filled, filled
		default:
			return state == found, state
		}
	case stands:
		if state == nothing {
			return true, filled
		}
		return true, state
	case unread:
		// Where something else stands it was not put.
		if state != nothing {
			return true, state
		}
		return true, unread
	case "fill":
		if e.Outcome == refused {
			return state != nothing, state
		}
		return state == nothing || state == filled || e.Open(), fillOf(state)
	case "trim", "trim_to":
		return true, trimmed
	default:
		return false, state
	}
}

func fillOf(state string) string {
	if state == nothing {
		return filled
	}
	return state
}

var positionModel = porcupine.Model{
	Init: func() interface{} { return nothing },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		return positionStep(state.(string), input.(*Event))
	},
	DescribeOperation: func(input, _ interface{}) string { return input.(*Event).String() },
	DescribeState:     func(state interface{}) string { return state.(string) },
}

// at gives what a call does at one position.
func (e *Event) at(call string, value, found *string) *Event {
	one := *e
	one.Call, one.Keys, one.Values, one.Found = call, nil, []*string{value}, []*string{found}
	return &one
}

// perhaps gives a trim as one that may have been made, if it was answered with an error: then positions are trimmed,
// or not.
func (e *Event) perhaps() *Event {
	if e.Outcome != failed {
		return e
	}
	one := *e
	one.Outcome, one.End = unknown, nil
	return &one
}

// aLog gathers the calls of a log by position.
type aLog struct {
	positions map[int64][]*Event
	trims     []*Event
	// Appends whose answer was lost and whose entries no client has read.
	unread []*Event
	above  []mark
	below  []mark
}

// mark is a position at a time: something stood below it by then, or was put at it or above from then on.
type mark struct {
	time, position int64
	event          *Event
}

// add notes a call at a position.
func (l *aLog) add(position int64, event *Event) {
	l.positions[position] = append(l.positions[position], event)
}

// appended notes entries whose first position is known.
func (l *aLog) appended(e *Event, position int64) {
	for i, value := range e.Values {
		l.add(position+int64(i), e.at(writes, value, nil))
	}
	l.above = append(l.above, mark{e.Begin, position, e})
	if e.until() != math.MaxInt64 {
		l.below = append(l.below, mark{e.until(), position + int64(len(e.Values)), e})
	}
}

// told notes a tail.
func (l *aLog) told(e *Event) {
	l.above = append(l.above, mark{e.Begin, e.Number, e})
	l.below = append(l.below, mark{*e.End, e.Number, e})
	if e.Number > 0 {
		l.add(e.Number-1, e.at(stands, nil, nil))
	}
}

// disorder finds what stands below something that was shown before it began.
func (l *aLog) disorder(name string) []string {
	sort.Slice(l.below, func(i, j int) bool { return l.below[i].time < l.below[j].time })
	sort.Slice(l.above, func(i, j int) bool { return l.above[i].time < l.above[j].time })
	var wrong []string
	var floor mark
	next := 0
	for _, mark := range l.above {
		for next < len(l.below) && l.below[next].time < mark.time {
			if l.below[next].position > floor.position {
				floor = l.below[next]
			}
			next++
		}
		if mark.position < floor.position && len(wrong) < namedMax {
			wrong = append(wrong, fmt.Sprintf(
				"%s: out of order: %v (process %d) is answered with %d, after %v (process %d) was with %d",
				name, mark.event, mark.event.Process, mark.position, floor.event, floor.event.Process, floor.position))
		}
	}
	return wrong
}

// floor gives the highest position that something was shown below before this time: what begins then is put at it or above.
func (l *aLog) floor(time int64) int64 {
	highest := int64(0)
	for _, mark := range l.below {
		if mark.time < time {
			highest = max64(highest, mark.position)
		}
	}
	return highest
}

// trimsOf gives the trims of a position that matter: those after one that was answered change nothing more.
func (l *aLog) trimsOf(position int64) []*Event {
	first := int64(math.MaxInt64)
	for _, trim := range l.trims {
		if trim.Held > position {
			first = min64(first, trim.until())
		}
	}
	var matter []*Event
	for _, trim := range l.trims {
		if trim.Held > position && trim.Begin <= first {
			matter = append(matter, trim)
		}
	}
	return matter
}

// unreadAt gives the entry that a refused fill may have met, though no client has read it: of the appends that may have
// written it, and had begun by then, the one that began first, since it explains all that the others do. Each position
// is judged by itself: that one append explains more positions than it has entries is not seen.
func (l *aLog) unreadAt(position int64, events []*Event) []*Event {
	refusedBy := int64(-1)
	for _, event := range events {
		switch {
		case event.Call == writes:
			return nil
		case event.Call == "fill" && event.Outcome == refused:
			refusedBy = max64(refusedBy, *event.End)
		}
	}
	var first *Event
	for _, append := range l.unread {
		elsewhere := append.Call == "append_at" && (position < append.Held || position >= append.Held+int64(len(append.Values)))
		elsewhere = elsewhere || position < l.floor(append.Begin)
		if append.Begin < refusedBy && !elsewhere && (first == nil || append.Begin < first.Begin) {
			first = append
		}
	}
	if first == nil {
		return nil
	}
	return []*Event{first.at(unread, nil, nil)}
}

// parts gives a partition for each position.
func (l *aLog) parts(name string) []partition {
	all := make([]partition, 0, len(l.positions))
	for position, events := range l.positions {
		events = append(events, l.unreadAt(position, events)...)
		events = append(events, l.trimsOf(position)...)
		all = append(all, partition{name: fmt.Sprintf("%s at %d", name, position), events: events, model: positionModel})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].name < all[j].name })
	return all
}

func logPartitions(events []*Event) ([]partition, []string) {
	logs := map[string]*aLog{}
	var names []string
	see(events, itself)
	// Where the entries of calls stand whose answer was lost: clients have read them.
	places := map[*Event]int64{}
	writers := map[string]*Event{}
	for _, event := range events {
		if logs[event.Place] == nil {
			logs[event.Place] = &aLog{positions: map[int64][]*Event{}}
			names = append(names, event.Place)
		}
		if event.Open() && event.seen > 0 {
			for _, value := range event.Values {
				writers[*value] = event
			}
		}
	}
	for _, event := range events {
		log := logs[event.Place]
		switch {
		case event.Call == "trim_to" && event.Outcome != fault:
			log.trims = append(log.trims, event.perhaps())
		case event.Call == "trim" && event.Outcome != fault:
			log.add(event.Held, event.perhaps().at("trim", nil, nil))
		case event.Call == "fill" && (event.Shown() || event.Open()):
			log.add(event.Held, event.at("fill", nil, nil))
		case event.Open() && event.seen == 0 && (event.Call == "append" || event.Call == "append_at"):
			log.unread = append(log.unread, event)
		case !event.Shown():
		case event.Call == "read":
			for i, found := range event.Found {
				position := event.Held + int64(i)
				log.add(position, event.at("read", nil, found))
				if writer := writers[held(found)]; writer != nil {
					for nth, value := range writer.Values {
						if *value == *found {
							places[writer] = position - int64(nth)
						}
					}
				}
				if mark := *found; mark != "hole" && mark != "beyond" && mark != filled && mark != trimmed {
					log.below = append(log.below, markOf(event, position+1))
				}
			}
		case event.Call == "append_at" && event.Outcome == refused, event.Call == "tail":
			log.told(event)
		case event.Outcome == ok:
			log.appended(event, event.Number)
		}
	}
	for writer, position := range places {
		logs[writer.Place].appended(writer, position)
	}
	sort.Strings(names)
	var parts []partition
	var wrong []string
	for _, name := range names {
		wrong = append(wrong, logs[name].disorder(name)...)
		parts = append(parts, logs[name].parts(name)...)
	}
	return parts, wrong
}

func markOf(event *Event, position int64) mark { return mark{*event.End, position, event} }
