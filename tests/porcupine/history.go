// The histories that tests/histories records: one line of JSON for each call, and what can be said of calls that
// were not answered.
//
// A call of unknown outcome may have been made or not, at any time after it began. Values are unique, so a value that
// a client was shown tells that its call was made, and before that answer. A call whose values no client was shown is
// doubtful: most histories are linearizable without these, and only where one is not the checker tries with them.

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
)

// What became of a call.
const (
	ok      = "ok"
	refused = "refused"
	failed  = "error"
	unknown = "unknown"
	fault   = "fault"
)

// Longest line of a history, in bytes.
const lineBytesMax = 16 << 20

// Event is a call with its answer.
type Event struct {
	Process int64     `json:"process"`
	Begin   int64     `json:"begin"`
	End     *int64    `json:"end"`
	Call    string    `json:"call"`
	Place   string    `json:"place"`
	Keys    []int     `json:"keys"`
	Values  []*string `json:"values"`
	When    []*string `json:"when"`
	Held    int64     `json:"held"`
	Handle  int64     `json:"handle"`
	Outcome string    `json:"outcome"`
	Found   []*string `json:"found"`
	Number  int64     `json:"number"`
	Why     string    `json:"why"`

	// Until when it was made, if its outcome is unknown and a client was shown that it was.
	seen int64
}

// Open says that its client does not know what became of the call.
func (e *Event) Open() bool { return e.Outcome == unknown }

// Shown says that the call tells something of the state: it was answered, and not with an error.
func (e *Event) Shown() bool { return e.Outcome == ok || e.Outcome == refused }

// until is the end of the call, as far as it is known.
func (e *Event) until() int64 {
	switch {
	case e.End != nil && !e.Open():
		return *e.End
	case e.seen > 0:
		return e.seen
	default:
		return math.MaxInt64
	}
}

// doubtful says that the call may not have been made.
func (e *Event) doubtful() bool { return e.until() == math.MaxInt64 }

// String shows the call as people read it.
func (e *Event) String() string {
	text := fmt.Sprintf("%s %v", e.Call, e.Keys)
	if len(e.Values) > 0 {
		text += fmt.Sprintf(" := %s", shown(e.Values))
	}
	if len(e.When) > 0 {
		text += fmt.Sprintf(" if %s", shown(e.When))
	}
	if e.Held != 0 {
		text += fmt.Sprintf(" (%d)", e.Held)
	}
	text += fmt.Sprintf(" -> %s", e.Outcome)
	if len(e.Found) > 0 {
		text += fmt.Sprintf(" %s", shown(e.Found))
	}
	if e.Number != 0 {
		text += fmt.Sprintf(" %d", e.Number)
	}
	return text
}

func shown(values []*string) []string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = "none"
		if value != nil {
			texts[i] = *value
		}
	}
	return texts
}

// read reads a history.
func read(path string) ([]*Event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var events []*Event
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, lineBytesMax)
	for number := 1; lines.Scan(); number++ {
		event := &Event{}
		if err := json.Unmarshal(lines.Bytes(), event); err != nil {
			return nil, fmt.Errorf("%s line %d: %w", path, number, err)
		}
		if event.End != nil && *event.End < event.Begin {
			return nil, fmt.Errorf("%s line %d ends before it begins", path, number)
		}
		events = append(events, event)
	}
	return events, lines.Err()
}

// see finds calls of unknown outcome of which a client was shown that they were made. parts gives what a value that was
// written or shown is made of.
func see(events []*Event, parts func(value string) []string) {
	writers := map[string]*Event{}
	for _, event := range events {
		if event.Open() {
			for _, value := range event.Values {
				if value != nil {
					for _, part := range parts(*value) {
						writers[part] = event
					}
				}
			}
		}
	}
	for _, event := range events {
		if !event.Shown() || event.End == nil {
			continue
		}
		for _, value := range event.Found {
			if value == nil {
				continue
			}
			for _, part := range parts(*value) {
				if writer := writers[part]; writer != nil {
					writer.seenBy(*event.End)
				}
			}
		}
	}
}

func (e *Event) seenBy(end int64) {
	if e.seen == 0 || end < e.seen {
		e.seen = end
	}
}

// itself is a value that is made of nothing smaller.
func itself(value string) []string { return []string{value} }

// byPlace groups calls, in order of the names of their places. Calls that say nothing are left out: those that changed
// nothing, and reads that were not answered.
func byPlace(events []*Event, reads map[string]bool) (names []string, places map[string][]*Event) {
	places = map[string][]*Event{}
	for _, event := range events {
		if event.Outcome == failed || event.Open() && reads[event.Call] {
			continue
		}
		if places[event.Place] == nil {
			names = append(names, event.Place)
		}
		places[event.Place] = append(places[event.Place], event)
	}
	sort.Strings(names)
	return names, places
}
