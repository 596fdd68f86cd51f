// Says whether recorded histories are linearizable: reads what tests/histories wrote, and has Porcupine check it.
//
//	porcupine [-limit 60s] FOLDER
//
// folder -> FACE.jsonl -> partitions -> a line for each face; 1 if a face is wrong or undecided, with a picture of
// what is wrong
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

var faces = []string{"kv", "thrift", "map", "log", "volume"}

func main() {
	limit := flag.Duration("limit", time.Minute, "how long one partition may take")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: porcupine [-limit 60s] FOLDER    with FACE.jsonl of some of:", faces)
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	os.Exit(run(flag.Arg(0), *limit))
}

// run checks all histories of a folder; the exit code.
func run(folder string, limit time.Duration) int {
	checked, code := 0, 0
	for _, face := range faces {
		path := filepath.Join(folder, face+".jsonl")
		if _, err := os.Stat(path); os.IsNotExist(err) {
			continue
		}
		events, err := read(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "porcupine:", err)
			return 2
		}
		said := judge(face, events, limit, folder)
		checked++
		word := "linearizable"
		if len(said.wrong) > 0 {
			word, code = "WRONG", 1
		}
		fmt.Printf("%-7s%d operations in %d partitions: %s (%.1f s); ",
			face, said.operations, said.partitions, word, said.took.Seconds())
		fmt.Printf("of unknown outcome %d that were seen, %d that were not\n", said.seen, said.doubtful)
		for i, wrong := range said.wrong {
			if i == namedMax {
				fmt.Printf("       and %d more\n", len(said.wrong)-i)
				break
			}
			fmt.Println("      ", wrong)
		}
	}
	if checked == 0 {
		fmt.Fprintf(os.Stderr, "porcupine: no history in %s\n", folder)
		return 2
	}
	return code
}
