# Short names for what one does every day. `just` lists them.

default:
    @just --list

# Start a server on ./esker-data
serve *ARGS:
    cargo run --release --bin esker -- serve {{ARGS}}

# Everything that continuous integration runs
test:
    ./scripts/test

# Format all sources
fmt:
    cargo fmt --all
    cargo fmt --manifest-path fuzz/Cargo.toml
    cargo fmt --all --manifest-path benches/Cargo.toml

# Lints, as strict as continuous integration
lint:
    cargo clippy --workspace --all-targets -- -D warnings
    cargo clippy --manifest-path benches/Cargo.toml --workspace --all-targets -- -D warnings

# All tests in Rust, several programs at a time
tests:
    ./scripts/run-tests --workspace --features esker/cassandra,esker-cli/otlp

# Words in all files, and files in TOML
words:
    ./scripts/words

# The rules of the tree
tidy:
    cargo test -p esker-tidy

# Runs what the book shows
book *PAGES:
    ./scripts/check-book {{PAGES}}

# One fuzz target (compressed, log, nbd, record, recovery, resp, structure, thrift, volume) for some seconds
fuzz TARGET SECONDS="60" SEED="1":
    cargo run --release --manifest-path fuzz/Cargo.toml -- {{TARGET}} --seconds {{SECONDS}} --seed {{SEED}}

# The crash simulation
sim SEEDS="1000":
    cargo run --release -p esker-sim -- --seeds {{SEEDS}}

# Histories of real processes while the server is killed, checked for linearizability (needs Go)
histories SECONDS="20" *ARGS:
    ./scripts/histories {{SECONDS}} {{ARGS}}

# kill -9 and power cuts while clients of Thrift write and the mode is switched: what is lost is what is stated
modes *ARGS:
    ./scripts/thrift-modes {{ARGS}}

# A cluster in network namespaces, disturbed: histories, and whether all replicas hold the same (as root; needs Go)
cluster SECONDS="60" *ARGS:
    ./scripts/cluster-test --seconds {{SECONDS}} {{ARGS}}

# ScalarDB's integration tests of the adapter in clients/java (needs a JDK and Maven, which it installs)
scalardb *ARGS:
    ./scripts/scalardb {{ARGS}}

# What the pages of docs/measurements show, again, on this machine (hours for `all`)
measure *PAGES:
    ./scripts/measure {{PAGES}}

# Licences, bans, sources and advisories of dependencies
deny:
    ./scripts/tool cargo-deny check

# Dependencies that nothing uses
unused:
    ./scripts/tool cargo-machete

# What changed of the libraries' interfaces since REV
interfaces REV:
    ./scripts/tool cargo-semver-checks semver-checks --workspace --baseline-rev {{REV}}

# Which share of each crate's lines the tests run
coverage *ARGS:
    ./scripts/coverage {{ARGS}}

# The pages of the book, in target/book
pages:
    ./scripts/tool mdbook build

# The documentation of all crates, opened in a browser
doc:
    cargo doc --workspace --no-deps --open
