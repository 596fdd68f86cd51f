"""A running server, for the scripts beside this file: started with its doors, asked what it holds, stopped.

    ESKER   the program, or ESKER_BIN (default: debug/esker in CARGO_TARGET_DIR, or in target beside this folder)
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS_MAX = 60
# What the server prints in front of each of its addresses.
PRINTED = {"resp": "listening", "nbd": "disks", "grpc": "grpc", "http": "http", "thrift": "thrift"}
FLAGS = {"resp": "--listen", "nbd": "--nbd", "grpc": "--grpc", "http": "--http", "thrift": "--thrift"}
DOORS = ("resp", "nbd", "grpc", "http")
EVERY_PORT = "127.0.0.1:0"


def program():
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    return Path(os.environ.get("ESKER") or os.environ.get("ESKER_BIN") or target / "debug" / "esker").resolve()


def at(address):
    return f"{address[0]}:{address[1]}"


class Server:
    """A server with these doors, in a folder of its own; `resp`, `nbd`, `grpc`, `http`, `thrift` are their hosts and
    ports."""

    def __init__(self, folder, *arguments, doors=DOORS, limit=None, prepare=None, esker=None):
        self.program, self.folder, self.prepare = esker or program(), folder, prepare
        # Settings of this shell must not reach the server.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ESKER")}
        flags = [word for door in doors for word in (FLAGS[door], EVERY_PORT)]
        self.process = self.start("serve", *arguments, *flags, told="told", limit=limit)
        for door, address in zip(doors, self.addresses(doors)):
            setattr(self, door, address)

    def start(self, *arguments, told, given=None, limit=None):
        """Starts the program; what it prints goes to the file `told`, and what it logs beside it. `limit` is the most
        descriptors it may have."""
        command = [str(self.program), *arguments]
        if limit:
            command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *command]
        with (self.folder / told).open("w") as out, (self.folder / f"{told}.log").open("w") as errors:
            return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdin=given, stdout=out,
                                    stderr=errors, preexec_fn=self.prepare)

    def run(self, *arguments, given=None):
        """Runs the program to its end, with `given` on its standard input; returns what it printed."""
        done = subprocess.run([str(self.program), *arguments], cwd=self.folder, env=self.environment, text=True,
                              input=given, capture_output=True, timeout=120, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def addresses(self, doors):
        """Host and port of each door, as the server prints them."""
        told, until = self.folder / "told", time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < until and self.process.poll() is None:
            text = told.read_text()
            found = [re.search(rf"^{PRINTED[door]} +(?:\w+://)?([\d.]+):(\d+)", text, re.MULTILINE) for door in doors]
            if all(found):
                return [(door[1], int(door[2])) for door in found]
            time.sleep(0.05)
        raise RuntimeError(f"the server did not say where it listens:\n{told.read_text()}"
                           f"{(self.folder / 'told.log').read_text()}")

    def status(self):
        """What the system says of the process: figures of /proc/PID/status, in KiB where it says kB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return {name: int(value) for name, value in re.findall(r"^(Vm\w+|Rss\w+|Threads):\s+(\d+)", text, re.MULTILINE)}

    def held(self):
        """What the process holds: resident memory in bytes, open descriptors, those of them that are rings of reads,
        threads."""
        figure = self.status()
        opened = []
        for path in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                opened.append(os.readlink(path))
            except FileNotFoundError:
                pass  # Closed meanwhile.
        return {"resident_bytes": figure["VmRSS"] * 1024, "descriptors": len(opened),
                "rings": sum("[io_uring]" in name for name in opened), "threads": figure["Threads"]}

    def peak_bytes(self, anew=False):
        """The most resident memory since the start, or since this was asked for `anew`."""
        peak = self.status()["VmHWM"] * 1024
        if anew:
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return peak

    def thread_names(self):
        """How many threads there are of each name."""
        names = [path.read_text().strip() for path in Path(f"/proc/{self.process.pid}/task").glob("*/comm")]
        return {name: names.count(name) for name in sorted(set(names))}

    def stop(self, seconds=60):
        """Ends it by SIGTERM: its exit code, and how long that took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds), time.monotonic() - began

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
