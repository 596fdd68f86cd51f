"""A device of which a power cut takes what was not synced, for the scripts beside this file.

a file under a mount point (nbdfuse) → NBD → this server: writes are kept in memory → flush: they go to the file
below · cut: of what was not flushed some blocks go there, by chance, and the others are gone

Needs root, /dev/fuse and nbdfuse (Debian: libnbd-bin, fuse3). Run as a program it is the server.
"""

import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

BLOCK = 512
MOUNT_SECONDS_MAX = 20
# The protocol's numbers: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
OPTION_EXPORT_NAME, OPTION_ABORT, OPTION_INFO, OPTION_GO = 1, 2, 6, 7
REPLY_ACK, REPLY_INFO, REPLY_UNSUPPORTED = 1, 3, 1 << 31 | 1
FLAGS = 1 | 1 << 2  # it has flags, and flushes
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
INVALID = 22


class Disk:
    """A file, and the blocks over it that were not flushed."""

    def __init__(self, path, seed, flush_seconds):
        self.file, self.len = os.open(path, os.O_RDWR), os.stat(path).st_size
        self.blocks, self.random, self.flush_seconds = {}, random.Random(seed), flush_seconds

    def read(self, offset, length):
        data = bytearray(os.pread(self.file, length, offset))
        for block in range(offset // BLOCK, -(-(offset + length) // BLOCK)):
            if (kept := self.blocks.get(block)) is not None:
                at = block * BLOCK - offset
                data[max(at, 0):at + BLOCK] = kept[max(-at, 0):length - at]
        return bytes(data)

    def write(self, offset, data):
        first, last = offset // BLOCK, -(-(offset + len(data)) // BLOCK)
        if offset % BLOCK or len(data) % BLOCK:
            whole = bytearray(self.read(first * BLOCK, (last - first) * BLOCK))
            whole[offset - first * BLOCK:offset - first * BLOCK + len(data)] = data
            data = bytes(whole)
        for block in range(first, last):
            self.blocks[block] = data[(block - first) * BLOCK:(block - first + 1) * BLOCK]

    def keep(self, blocks):
        for block, data in sorted(blocks.items()):
            os.pwrite(self.file, data, block * BLOCK)

    def flush(self):
        # A device takes its time. This server is one thread: what else is asked of it meanwhile waits as well.
        time.sleep(self.random.uniform(0, self.flush_seconds))
        self.keep(self.blocks)
        self.blocks = {}

    def cut(self, *_):
        """Loses what was not flushed, but for what chance leaves; ends the process."""
        share = self.random.choice([0, 0, 0.5])
        self.keep({block: data for block, data in self.blocks.items() if self.random.random() < share})
        os._exit(0)


def whole(connection, length):
    data = bytearray()
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def agree(connection, disk):
    connection.sendall(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
    no_zeroes = struct.unpack(">I", whole(connection, 4))[0] & 2
    while True:
        _, option, length = struct.unpack(">QII", whole(connection, 16))
        whole(connection, length)

        def reply(kind, data=b"", option=option):
            connection.sendall(struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data)) + data)

        if option == OPTION_EXPORT_NAME:
            connection.sendall(struct.pack(">QH", disk.len, FLAGS) + (b"" if no_zeroes else bytes(124)))
            return
        if option in (OPTION_INFO, OPTION_GO):
            reply(REPLY_INFO, struct.pack(">HQH", 0, disk.len, FLAGS))
            reply(REPLY_ACK)
            if option == OPTION_GO:
                return
        elif option == OPTION_ABORT:
            reply(REPLY_ACK)
            raise EOFError
        else:
            reply(REPLY_UNSUPPORTED)


def serve(connection, disk):
    agree(connection, disk)
    while True:
        _, _, command, cookie, offset, length = struct.unpack(">IHHQQI", whole(connection, 28))
        error, data = 0, b""
        if command == READ:
            data = disk.read(offset, length)
        elif command == WRITE:
            disk.write(offset, whole(connection, length))
        elif command == FLUSH:
            disk.flush()
        elif command == DISCONNECT:
            return
        else:
            error = INVALID
        connection.sendall(struct.pack(">IIQ", 0x67446698, error, cookie) + data)


class Device:
    """The device while it is there: `path` is its file. `below` is a file of its length, which outlives it."""

    def __init__(self, folder, below, seed, flush_seconds):
        self.folder, door = folder / "mount", folder / "door"
        self.path = self.folder / "nbd"
        self.folder.mkdir(exist_ok=True)
        door.unlink(missing_ok=True)
        words = [sys.executable, __file__, below, door, seed, flush_seconds]
        self.server = subprocess.Popen([str(word) for word in words])
        wait(door.exists, "the device's server does not listen")
        self.mount = subprocess.Popen(["nbdfuse", str(self.path), f"nbd+unix:///?socket={door}"],
                                      # It complains of the cut.
                                      stderr=subprocess.DEVNULL)
        wait(self.path.exists, "nbdfuse does not mount")

    def cut(self):
        """Takes the power away: nothing of what is written from now on reaches the file below."""
        self.server.send_signal(signal.SIGTERM)
        self.server.wait()

    def remove(self):
        """Its users are gone."""
        subprocess.run(["fusermount3", "-uz", str(self.folder)], check=False)
        for process in (self.mount, self.server):
            process.kill()
            process.wait()


def wait(is_so, otherwise):
    until = time.monotonic() + MOUNT_SECONDS_MAX
    while not is_so():
        if time.monotonic() > until:
            raise RuntimeError(otherwise)
        time.sleep(0.01)


def lacks():
    """What is missing for a device here; nothing if it can be made."""
    if os.geteuid() != 0:
        return "root"
    if not Path("/dev/fuse").exists():
        return "/dev/fuse"
    return " and ".join(name for name in ("nbdfuse", "fusermount3") if not shutil.which(name))


def main():
    below, door, seed, flush_seconds = sys.argv[1:]
    disk = Disk(below, seed, float(flush_seconds))
    signal.signal(signal.SIGTERM, disk.cut)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(door)
        listener.listen(1)
        while True:
            connection, _ = listener.accept()
            try:
                serve(connection, disk)
            except (EOFError, ConnectionError):
                pass


if __name__ == "__main__":
    main()
