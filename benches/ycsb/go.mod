module esker/benches/ycsb

go 1.24

require (
	github.com/apache/thrift v0.17.0
	github.com/gocql/gocql v1.7.0
	github.com/magiconair/properties v1.8.0
	github.com/pingcap/go-ycsb v1.0.1
)

require (
	github.com/HdrHistogram/hdrhistogram-go v1.1.2 // indirect
	github.com/golang/snappy v0.0.3 // indirect
	github.com/hailocab/go-hostpool v0.0.0-20160125115350-e80d13ce29ed // indirect
	github.com/mattn/go-runewidth v0.0.9 // indirect
	github.com/olekukonko/tablewriter v0.0.5 // indirect
	github.com/pingcap/errors v0.11.5-0.20211224045212-9687c2b0f87c // indirect
	go.uber.org/atomic v1.9.0 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
)
