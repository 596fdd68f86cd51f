// The model of a partition of a map: rows of two columns, put and deleted under conditions, several at once.
//
// A row is written A|B. In a put, - leaves a column as it is; in a row, - is a column that is not set.

package main

import "strings"

// Nothing stands in a column, or is put into it.
const unset = "-"

// columns gives the values of a row that are set.
func columns(row string) []string {
	var values []string
	for _, value := range strings.Split(row, "|") {
		if value != unset {
			values = append(values, value)
		}
	}
	return values
}

// put gives a row after columns were put.
func put(row, change string) string {
	if row == "" {
		return change
	}
	now, puts := strings.Split(row, "|"), strings.Split(change, "|")
	for i := range now {
		if i < len(puts) && puts[i] != unset {
			now[i] = puts[i]
		}
	}
	return strings.Join(now, "|")
}

// holds says whether a condition holds of a row.
func holds(row string, condition *string) bool {
	switch {
	case condition == nil:
		return true
	case *condition == "exists":
		return row != ""
	case *condition == "absent":
		return row == ""
	default:
		first := strings.Split(row, "|")[0]
		return row != "" && first != unset && "="+first == *condition
	}
}

func mapStep(state cells, e *Event) (bool, cells) {
	switch e.Call {
	case "get", "scan":
		return state.shows(e.Keys, e.Found), state
	case "mutate":
		after := state
		for i, key := range e.Keys {
			if !holds(state[key], e.When[i]) {
				// The first that does not hold is told with its row.
				told := e.Outcome == refused && e.Number == int64(i) && state.shows([]int{key}, e.Found)
				return told || e.Open(), state
			}
			if e.Values[i] == nil {
				after[key] = ""
			} else {
				after[key] = put(state[key], *e.Values[i])
			}
		}
		return e.Outcome != refused, after
	default:
		return false, state
	}
}

func mapPartitions(events []*Event) []partition {
	see(events, columns)
	return partitions(events, map[string]bool{"get": true, "scan": true}, cellsModel(mapStep))
}
