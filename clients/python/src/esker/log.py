"""The shared log: write-once positions in one order that all readers see.

    logs = esker.log.Logs(connection)
    orders = logs.create("orders")
    position = orders.append(b"a book", streams=[b"eu"])     # returns when it is durable
    for found in orders.follow(start=position):              # waits for more, for ever
        if isinstance(found, esker.log.Entry):
            print(found.position, found.data)
        else:
            print(found.kind, found.start, found.end)        # a gap

Every call may raise what `esker.errors` has, besides what it names itself. A call that was given up (deadline, broken connection) may still have its
effect: an append is undone by nothing. `Log.writer` makes appends that can be repeated.
"""

from __future__ import annotations

import datetime
import enum
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Optional, Union

from . import errors
from ._proto import log_pb2 as pb
from ._proto import log_pb2_grpc
from .connection import Connection, replies

__all__ = [
    "Appended",
    "Appender",
    "Compression",
    "Entry",
    "Follower",
    "Found",
    "Gap",
    "GapKind",
    "Info",
    "Layout",
    "Log",
    "LogExists",
    "Logs",
    "NoSequencer",
    "NoSuchLog",
    "NotTail",
    "Options",
    "PastTail",
    "Record",
    "Sealed",
    "Tail",
    "Taken",
    "Trimmed",
    "Uncertain",
    "Writer",
]


class NoSuchLog(errors.Error, LookupError):
    """There is no log of that name. Create it, or fix the name."""


class LogExists(errors.Error):
    """There is a log of that name already."""


class Taken(errors.Error):
    """The position (`position`) holds something: read it."""


class Sealed(errors.Error):
    """The log takes no more entries; `position` is its tail."""


class NotTail(errors.Error):
    """A conditional append: the tail is at `position`. Nothing happened."""


class Trimmed(errors.Error):
    """The position was given up."""


class PastTail(errors.Error):
    """The position was never handed out; `position` is the tail."""


class NoSequencer(errors.Error):
    """No sequencer hands out positions at the moment. Try again, or start a sequencer."""


class Uncertain(errors.Error):
    """The append may or may not be there, at `position`: read it."""


#: Classes of the names that the log has.
NAMES: Mapping[str, type[errors.Error]] = {
    "exists": LogExists,
    "no-log": NoSuchLog,
    "no-sequencer": NoSequencer,
    "not-tail": NotTail,
    "past-tail": PastTail,
    "sealed": Sealed,
    "taken": Taken,
    "trimmed": Trimmed,
    "uncertain": Uncertain,
}


class Layout(enum.IntEnum):
    """Where the entries of an object stand. Chosen once."""

    BEST = pb.LAYOUT_UNSPECIFIED
    """What suits the store best."""
    OMAP = pb.LAYOUT_OMAP
    """In an ordered map."""
    STREAM = pb.LAYOUT_STREAM
    """Appended to the object's bytes; small ones in the ordered map."""
    SLOTS = pb.LAYOUT_SLOTS
    """In slots: a flat index in memory."""


class Compression(enum.IntEnum):
    """How entries are compressed, where the store can."""

    NONE = pb.COMPRESSION_NONE
    LZ4 = pb.COMPRESSION_LZ4
    ZSTD = pb.COMPRESSION_ZSTD


@dataclass(frozen=True)
class Options:
    """Options of a log. What is `None` has the server's default.

    Attributes:
        layout: Where entries stand.
        width: Objects that positions go round, 1 to 1024. Default: 4.
        slots: Positions per object, 1 to 2^24. Default: 65536.
        entry_bytes_max: Largest entry in bytes, up to 8 MiB. Default: 1 MiB.
        inline_bytes_max: Layout `STREAM`: entries up to so many bytes stand in the ordered map. Default: 4 KiB.
        object_bytes_max: Layout `STREAM`: a new stripe is begun when an object has so many bytes. Default: 256 MiB.
        compression: How entries are compressed.
        retain_positions: Retention keeps so many positions; 0: all.
        retain_bytes: Retention keeps about so many bytes; 0: all.
        retain_ms: Retention keeps entries for so many milliseconds; 0: for ever.
    """

    layout: Layout = Layout.BEST
    width: Optional[int] = None
    slots: Optional[int] = None
    entry_bytes_max: Optional[int] = None
    inline_bytes_max: Optional[int] = None
    object_bytes_max: Optional[int] = None
    compression: Compression = Compression.NONE
    retain_positions: int = 0
    retain_bytes: int = 0
    retain_ms: int = 0

    def _message(self) -> pb.Options:
        given = {name: value for name, value in vars(self).items() if value is not None}
        for name, value in given.items():
            _unsigned(name, value, 64 if name in ("object_bytes_max",) or name.startswith("retain") else 32)
        return pb.Options(**given)

    @classmethod
    def _from(cls, message: pb.Options) -> Options:
        given = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
        return cls(**{**given, "layout": Layout(message.layout), "compression": Compression(message.compression)})


@dataclass(frozen=True)
class Info:
    """What there is to say about a log.

    Attributes:
        name: Its name.
        id: As long as it lives, whatever it is called.
        options: Its options, none left out.
        epoch: Grows when another process hands out positions, and with changes of shape.
        tail: The position that is handed out next.
        trimmed: Everything below is given up.
        sealed: Whether it takes no more entries.
        sequencer: Address of its sequencer; empty: the writers hand out positions themselves.
        owner: Its only writer; empty: every client writes.
    """

    name: str
    id: int
    options: Options
    epoch: int
    tail: int
    trimmed: int
    sealed: bool
    sequencer: str
    owner: str


@dataclass(frozen=True)
class Record:
    """What is appended: `data`, and names of the streams that it belongs to (at most 16 of 1 to 255 bytes)."""

    data: bytes
    streams: Sequence[bytes] = ()


@dataclass(frozen=True)
class Entry:
    """An entry of a log.

    Attributes:
        position: Its position.
        data: What was appended.
        streams: The streams that it belongs to.
        time_ms: When it was appended, by its writer's clock, in unix milliseconds.
        writer: Who appended it: a session or a named writer.
        number: Its number there.
    """

    position: int
    data: bytes
    streams: tuple[bytes, ...] = ()
    time_ms: int = 0
    writer: int = 0
    number: int = 0


class GapKind(enum.Enum):
    """Why there is no entry."""

    HOLE = pb.GAP_HOLE
    """Nothing yet: it may still be written, or filled."""
    FILLED = pb.GAP_FILLED
    """Given up before anything was written."""
    TRIMMED = pb.GAP_TRIMMED
    """Given up later."""
    BEYOND_TAIL = pb.GAP_BEYOND_TAIL
    """Nothing yet: at the tail or past it."""
    LOST = pb.GAP_LOST
    """An entry stood here and cannot be read: data loss."""


@dataclass(frozen=True)
class Gap:
    """Positions from `start` on, below `end`, without entries; `why` says more where they were lost."""

    start: int
    end: int
    kind: GapKind
    why: str = ""


#: What stands at a position, or at some.
Found = Union[Entry, Gap]


class Tail(NamedTuple):
    """The position that is handed out next, as known under an epoch. Everything whose append returned stands below."""

    position: int
    epoch: int


class Appended(NamedTuple):
    """What became of an append of a `Writer`."""

    position: int
    already_there: bool
    """Whether an earlier try had written it."""


Recordable = Union[Record, bytes, bytearray, memoryview]
Start = Union[int, str, datetime.datetime]


class Logs:
    """The logs of a server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = log_pb2_grpc.LogStub(connection.channel)  # type: ignore[no-untyped-call]

    def create(self, name: str, options: Optional[Options] = None, *, timeout: Optional[float] = None) -> Log:
        """Makes a log. Its name has 1 to 255 bytes.

        Raises:
            LogExists: There is one of that name.
            errors.Invalid: The name, or an option, is out of range.
        """
        message = None if options is None else options._message()
        self._call(self._stub.Create, pb.CreateRequest(log=name, options=message), timeout)
        return Log(self, name)

    def open(self, name: str, *, timeout: Optional[float] = None) -> Log:
        """A log that is there.

        Raises:
            NoSuchLog: There is none of that name.
        """
        log = Log(self, name)
        log.info(timeout=timeout)
        return log

    def delete(self, name: str, *, timeout: Optional[float] = None) -> None:
        """Deletes a log with everything in it.

        Raises:
            NoSuchLog: There is none of that name.
        """
        self._call(self._stub.Delete, pb.DeleteRequest(log=name), timeout)

    def rename(self, name: str, to: str, *, timeout: Optional[float] = None) -> Log:
        """Gives a log another name; its followers go on. `Log`s of the old name lead nowhere from then on.

        Raises:
            NoSuchLog: There is none of the old name.
            LogExists: There is one of the new.
        """
        self._call(self._stub.Rename, pb.RenameRequest(log=name, to=to), timeout)
        return Log(self, to)

    def names(self, after: str = "", *, timeout: Optional[float] = None) -> Iterator[str]:
        """Names of all logs, in order, those above `after`; some thousand per call."""
        while True:
            page = self._call(self._stub.List, pb.ListRequest(after=after), timeout).logs
            if not page:
                return
            yield from page
            after = page[-1]

    def _call(self, method: Any, request: Any, timeout: Optional[float]) -> Any:
        return self._connection.call(method, request, timeout=timeout, names=NAMES)


class Log:
    """A log, from `Logs.create` or `Logs.open`. It costs nothing, and any number of threads may use it.

    `timeout` of each method is in seconds; left out, it is that of the connection.
    """

    def __init__(self, logs: Logs, name: str) -> None:
        self._logs = logs
        self._stub = logs._stub
        self.name = name

    def __repr__(self) -> str:
        return f"Log({self.name!r} at {self._logs._connection.address})"

    def _call(self, method: Any, request: Any, timeout: Optional[float]) -> Any:
        return self._logs._call(method, request, timeout)

    def info(self, *, timeout: Optional[float] = None) -> Info:
        """Options, shape and tail."""
        told = self._call(self._stub.Info, pb.InfoRequest(log=self.name), timeout)
        fields = ("id", "epoch", "tail", "trimmed", "sealed", "sequencer", "owner")
        return Info(
            name=told.log, options=Options._from(told.options), **{field: getattr(told, field) for field in fields}
        )

    # Appending.

    def append(
        self,
        data: Recordable,
        *,
        streams: Iterable[bytes] = (),
        durable: bool = True,
        timeout: Optional[float] = None,
    ) -> int:
        """Appends one entry and returns its position, when it is durable.

        Args:
            data: Bytes, or a `Record` (which names its streams itself).
            streams: Names of the streams that it belongs to.
            durable: If false, returns when the entry can be read: a power cut may take back the last moments.

        Raises:
            errors.Invalid: The entry is longer than the log's `entry_bytes_max`, or has too many streams.
            Sealed, errors.Fenced, NoSequencer, errors.Full: It was not appended.
            Uncertain, errors.DeadlineExceeded, errors.Unavailable: It may or may not be there.
        """
        request = pb.AppendRequest(log=self.name, record=_record(data, streams), applied_only=not durable)
        return int(self._call(self._stub.Append, request, timeout).position)

    def append_batch(
        self, records: Iterable[Recordable], *, durable: bool = True, timeout: Optional[float] = None
    ) -> range:
        """Appends 1 to 4096 entries (16 MiB at most) at consecutive positions, all or none, and returns the positions.

        Raises:
            As `append`; errors.Unsupported: The server's store is atomic per object only, and the entries would stand in several.
        """
        batch = [_record(record) for record in records]
        request = pb.AppendBatchRequest(log=self.name, records=batch, applied_only=not durable)
        first = int(self._call(self._stub.AppendBatch, request, timeout).position)
        return range(first, first + len(batch))

    def append_at(self, expected: int, records: Iterable[Recordable], *, timeout: Optional[float] = None) -> range:
        """As `append_batch`, but only if the tail is at `expected`, which is then the first position.

        Raises:
            NotTail: It is elsewhere, and `position` says where. Nothing was appended.
        """
        batch = [_record(record) for record in records]
        request = pb.AppendAtRequest(log=self.name, expected=_unsigned("expected", expected), records=batch)
        first = int(self._call(self._stub.AppendAt, request, timeout).position)
        return range(first, first + len(batch))

    def appender(self, *, in_flight_max: int = 256, durable: bool = True, timeout: Optional[float] = None) -> Appender:
        """Many appends under way at once on one stream. See `Appender`."""
        return Appender(self, in_flight_max=in_flight_max, durable=durable, timeout=timeout)

    def append_many(
        self, records: Iterable[Recordable], *, in_flight_max: int = 256, durable: bool = True
    ) -> Iterator[int]:
        """Appends any number of entries, many under way at once, and yields their positions in the order of `records`, which is read as far as there is
        room. Positions grow, unless others' entries or failures come between; the first failure is raised, and those behind it may be there or not.
        """
        with self.appender(in_flight_max=in_flight_max, durable=durable) as appender:
            waiting: deque[Future[int]] = deque()
            for record in records:
                waiting.append(appender.append(record))
                while waiting and (len(waiting) >= in_flight_max or waiting[0].done()):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def writer(self, name: str, *, timeout: Optional[float] = None) -> Writer:
        """Opens a named writer, whose appends are in the log once, however often they are tried. A client that used the
        name before is refused from now on (`errors.Fenced`). The name has 1 to 255 bytes.
        """
        opened = self._call(self._stub.OpenWriter, pb.OpenWriterRequest(log=self.name, writer=name), timeout)
        return Writer(self, name, int(opened.session), int(opened.next_number))

    # Reading.

    def read(self, position: int, *, timeout: Optional[float] = None) -> Found:
        """What stands at a position. A position without an entry is a `Gap`, and no error."""
        request = pb.ReadRequest(log=self.name, position=_unsigned("position", position))
        return _found(position, self._call(self._stub.Read, request, timeout).found)

    def read_range(
        self,
        start: int,
        end: Optional[int] = None,
        *,
        bytes_max: int = 1 << 20,
        timeout: Optional[float] = None,
    ) -> Iterator[Found]:
        """What stands at the positions from `start` on, below `end` (or the tail, if that is left out), one by one; read in parts of about `bytes_max`
        bytes (up to 16 MiB), each in a call of its own.

        If the range goes past the tail, the last that is yielded is one gap from there to `end`.
        """
        _unsigned("bytes_max", bytes_max, 32)
        at, to_tail = _unsigned("start", start), end is None
        stop = self.tail(timeout=timeout).position if end is None else _unsigned("end", end)
        if not to_tail and stop < at:
            raise ValueError(f"range {start} to {end}: it ends before it starts")
        while at < stop:
            request = pb.ReadRangeRequest(log=self.name, start=at, end=stop, bytes_max=bytes_max)
            part = self._call(self._stub.ReadRange, request, timeout).found
            for one in part:
                found = _found(at, one)
                if isinstance(found, Gap) and found.kind is GapKind.BEYOND_TAIL:
                    yield Gap(at, stop, GapKind.BEYOND_TAIL)
                    return
                yield found
                at += 1
            if not part:
                yield Gap(at, stop, GapKind.BEYOND_TAIL)
                return

    def follow(
        self,
        start: Start = "first",
        *,
        stream: Optional[bytes] = None,
        until_tail: bool = False,
        ahead_bytes: int = 1 << 20,
        fill_after_ms: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Follower:
        """Every position in order, from anywhere to the tail and on.

        Args:
            start: A position; `"first"`: the first that is not trimmed; `"tail"`: only what comes; a time (with its zone): the first entry of then or later.
            stream: Only the entries of this stream.
            until_tail: Ends at the tail as it is now, instead of waiting for more.
            ahead_bytes: About so many bytes are read ahead, up to 16 MiB.
            fill_after_ms: A hole is filled after so many milliseconds. Default: 200.
            timeout: Seconds until following ends with `errors.DeadlineExceeded`; left out: never.
        """
        request = pb.FollowRequest(log=self.name, until_tail=until_tail)
        request.ahead_bytes = _unsigned("ahead_bytes", ahead_bytes, 32)
        if stream is not None:
            request.stream = bytes(stream)
        if fill_after_ms is not None:
            request.fill_after_ms = _unsigned("fill_after_ms", fill_after_ms)
        if isinstance(start, datetime.datetime):
            if start.tzinfo is None:
                raise ValueError(f"start {start}: a time without a zone could be any")
            request.time_ms = _unsigned("start", int(start.timestamp() * 1000))
        elif start == "first":
            request.first = True
        elif start == "tail":
            request.tail = True
        elif isinstance(start, int):
            request.position = _unsigned("start", start)
        else:
            raise ValueError(f"start {start!r}: expected a position, a time, 'first' or 'tail'")
        return Follower(self._logs._connection.stream(self._stub.Follow, request, timeout=timeout))

    def tail(self, *, timeout: Optional[float] = None) -> Tail:
        """The position that is handed out next. Everything whose append returned before stands below."""
        told = self._call(self._stub.Tail, pb.TailRequest(log=self.name), timeout)
        return Tail(int(told.position), int(told.epoch))

    # Giving up, and changing.

    def fill(self, position: int, *, timeout: Optional[float] = None) -> None:
        """Gives up a position below the tail that holds nothing: it never will. One that is filled already stays so.

        Raises:
            Taken: It holds something.
            Trimmed: It was given up before.
            PastTail: It was never handed out.
        """
        self._call(self._stub.Fill, pb.FillRequest(log=self.name, position=_unsigned("position", position)), timeout)

    def trim(self, position: int, *, timeout: Optional[float] = None) -> None:
        """Gives up one position, whatever it holds; its space is freed.

        Raises:
            PastTail: It was never handed out.
        """
        self._call(self._stub.Trim, pb.TrimRequest(log=self.name, position=_unsigned("position", position)), timeout)

    def trim_to(self, position: int, *, timeout: Optional[float] = None) -> int:
        """Gives up all positions below `position`, with their space.

        Raises:
            PastTail: `position` is above the tail.
        """
        request = pb.TrimToRequest(log=self.name, position=_unsigned("position", position))
        return int(self._call(self._stub.TrimTo, request, timeout).trimmed)

    def seal(self, *, timeout: Optional[float] = None) -> int:
        """Closes the log for good, and returns its tail. Sealing again does nothing."""
        return int(self._call(self._stub.Seal, pb.SealRequest(log=self.name), timeout).tail)

    def reshape(self, width: int, slots: int, *, timeout: Optional[float] = None) -> None:
        """From the tail on, positions go round `width` objects (1 to 1024) of `slots` positions each (1 to 2^24). Writers go on by themselves."""
        shape = {"width": _unsigned("width", width, 32), "slots": _unsigned("slots", slots, 32)}
        self._call(self._stub.Reshape, pb.ReshapeRequest(log=self.name, **shape), timeout)

    # Consumers.

    def consumer(self, name: str, *, timeout: Optional[float] = None) -> Optional[int]:
        """Where a consumer goes on, if it was noted. The name has 1 to 255 bytes."""
        told = self._call(self._stub.GetConsumer, pb.GetConsumerRequest(log=self.name, consumer=name), timeout)
        return int(told.position) if told.HasField("position") else None

    def set_consumer(self, name: str, position: int, *, timeout: Optional[float] = None) -> None:
        """Notes where a consumer goes on: durable when it returns."""
        _unsigned("position", position)
        request = pb.SetConsumerRequest(log=self.name, consumer=name, position=position)
        self._call(self._stub.SetConsumer, request, timeout)

    def forget_consumer(self, name: str, *, timeout: Optional[float] = None) -> None:
        """Forgets a consumer, if there is such a one."""
        self._call(self._stub.SetConsumer, pb.SetConsumerRequest(log=self.name, consumer=name), timeout)


class Follower(Iterator[Found]):
    """Positions of a log in order: entries, and gaps that say why there are none. From `Log.follow`.

    It waits for what comes next; `close`, from any thread, or the end of a `with` statement ends it. Iteration ends by itself at the tail (`until_tail`)
    or when the log was sealed and everything was delivered, and raises as the calls do. `position` is where another follower would go on.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._messages = replies(call, NAMES)
        self._ready: deque[Any] = deque()
        self._closed = False
        self.position: Optional[int] = None
        """The position behind the last that was yielded; `None` before the first."""
        self.sealed_at: Optional[int] = None
        """The tail, once it was reached in a log that is sealed."""

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # The server keeps a follower for as long as its call lives.
        self.close()

    def close(self) -> None:
        """Ends it. What was received already is not yielded any more."""
        self._closed = True
        self._call.cancel()

    def __next__(self) -> Found:
        while not self._ready:
            if self._closed:
                raise StopIteration
            try:
                self._ready.extend(next(self._messages).deliveries)
            except errors.Cancelled:
                if self._closed:
                    raise StopIteration from None
                raise
        if self._closed:
            raise StopIteration
        delivery = self._ready.popleft()
        what = delivery.WhichOneof("what")
        if what == "entry":
            self.position = int(delivery.entry.position) + 1
            return _entry(delivery.entry)
        if what == "gap":
            self.position = int(delivery.gap.end)
            return Gap(int(delivery.gap.start), self.position, _kind(delivery.gap.gap), delivery.gap.why)
        self.sealed_at = self.position = int(delivery.end)
        self._closed = True
        raise StopIteration


class Appender:
    """Many appends under way at once, on one stream. From `Log.appender`.

        with log.appender() as appender:
            futures = [appender.append(line) for line in lines]     # waits where `in_flight_max` are under way
        positions = [future.result() for future in futures]

    Entries are applied in the order in which they are appended. Leaving the `with` statement waits for the answers. An entry that fails says so in its
    future, and the stream goes on; where the stream itself fails, so do all that were under way (they may or may not be there), and `append` from then on.
    What gathers while a message is being sent goes with the next one, if the server takes such frames; an entry alone is sent at once.
    """

    def __init__(self, log: Log, *, in_flight_max: int, durable: bool, timeout: Optional[float]) -> None:
        if in_flight_max < 1:
            raise ValueError(f"in_flight_max = {in_flight_max}: expected 1 or more")
        self._name = log.name
        self._durable = durable
        self._room = threading.BoundedSemaphore(in_flight_max)
        self._lock = threading.Lock()
        self._records: queue.SimpleQueue[Optional[pb.Record]] = queue.SimpleQueue()
        self._frame_max = 1
        self._pending: dict[int, Future[int]] = {}
        self._next = 0
        self._ended: Optional[errors.Error] = None
        self._call = log._logs._connection.stream(log._stub.AppendStream, self._requests(), timeout=timeout)
        self._reader = threading.Thread(target=self._read, name="esker-appender", daemon=True)
        self._reader.start()

    def __enter__(self) -> Appender:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def append(
        self, data: Recordable, *, streams: Iterable[bytes] = (), timeout: Optional[float] = None
    ) -> Future[int]:
        """Appends an entry; the future's result is its position, when it is durable.

        Waits while `in_flight_max` appends are under way, up to `timeout` seconds.

        Raises:
            errors.DeadlineExceeded: There was no room in time. Nothing happened.
            errors.Error: The stream failed before, or was closed.
        """
        record = _record(data, streams)
        if not self._room.acquire(timeout=timeout):
            raise errors.DeadlineExceeded(f"no room for another append within {timeout} s", code="DEADLINE_EXCEEDED")
        with self._lock:
            if self._ended is not None:
                self._room.release()
                ended = self._ended
                raise type(ended)(ended.message, code=ended.code, name=ended.name, position=ended.position)
            tag, future = self._next, Future[int]()
            self._next += 1
            # It cannot be taken back.
            future.set_running_or_notify_cancel()
            self._pending[tag] = future
            self._records.put(record)
        return future

    def close(self) -> None:
        """Takes no more, and waits for the answers of those under way."""
        with self._lock:
            if self._ended is None:
                self._ended = errors.Cancelled("the appender was closed", code="CANCELLED")
                self._records.put(None)
        self._reader.join()

    def _requests(self) -> Iterator[pb.AppendRequest]:
        """What is sent: records in the order of their tags, alone or with what has gathered."""
        tag, log, more = 0, self._name, True
        first: Optional[pb.Record] = None
        while more or first is not None:
            record = self._records.get() if first is None else first
            first = None
            if record is None:
                return
            records, size = [record], record.ByteSize()
            while len(records) < self._frame_max:
                try:
                    record = self._records.get_nowait()
                except queue.Empty:
                    break
                if record is None:
                    more = False
                    break
                size += record.ByteSize()
                if size > _FRAME_BYTES:
                    # One that is too large goes alone, and takes no other with it.
                    first = record
                    break
                records.append(record)
            request = pb.AppendRequest(log=log, tag=tag, applied_only=not self._durable)
            if len(records) == 1:
                request.record.CopyFrom(records[0])
            else:
                request.records.extend(records)
            yield request
            tag, log = tag + len(records), ""

    def _answer(self, tag: int, count: int, answer: Any) -> None:
        with self._lock:
            futures = [self._pending.pop(tag + place, None) for place in range(count)]
        appended = answer.WhichOneof("outcome") == "appended"
        for place, future in enumerate(futures):
            if future is None:
                continue
            self._room.release()
            if appended:
                future.set_result(int(answer.appended.position) + place)
            else:
                future.set_exception(_failure(answer.failed))

    def _read(self) -> None:
        failure: Optional[errors.Error] = None
        try:
            messages = replies(self._call, NAMES)
            # A server that does not say so takes no frames.
            told = dict(self._call.initial_metadata() or ())
            self._frame_max = max(1, int(told.get("esker-appends-max", 1)))
            for message in messages:
                if message.WhichOneof("outcome") is not None:
                    self._answer(message.tag, 1, message)
                for answered in message.answered:
                    self._answer(answered.tag, answered.count, answered)
        except errors.Error as error:
            failure = error
        except Exception as error:  # Whatever ends this thread, the futures are told.
            failure = errors.Unavailable(f"the stream cannot be read: {error}", code="UNAVAILABLE")
        lost = failure or errors.Unavailable("the stream ended before the answer", code="UNAVAILABLE")
        with self._lock:
            if self._ended is None:
                self._ended = lost
                self._records.put(None)
            pending, self._pending = self._pending, {}
        for future in pending.values():
            self._room.release()
            future.set_exception(type(lost)(lost.message, code=lost.code, name=lost.name, position=lost.position))


class Writer:
    """A named writer: an entry of it is in the log once, however often its append is tried. From `Log.writer`; one thread at a time.

    Numbers count up by one. A program that is started again opens its writer and goes on at `next_number`: what is below is in the log.
    """

    def __init__(self, log: Log, name: str, session: int, next_number: int) -> None:
        self._log = log
        self.name = name
        self.session = session
        self.next_number = next_number
        """The number of the next entry."""

    def append(
        self,
        data: Recordable,
        *,
        streams: Iterable[bytes] = (),
        timeout: Optional[float] = None,
        retry_for: float = 30.0,
    ) -> Appended:
        """Appends the entry of `next_number`, and counts that up. Tries again for up to `retry_for` seconds where the answer was lost, or the server was busy
        or away. What fails may be tried again by the caller too, with the same data: the number is used up only by success.

        Raises:
            errors.Fenced: The writer was opened again since, or the server was started again. Open it anew (its `next_number` then says whether this
                entry is there), or stop.
            As `Log.append`.
        """
        numbered = pb.WriterNumber(writer=self.name, number=self.next_number, session=self.session)
        request = pb.AppendRequest(log=self._log.name, record=_record(data, streams), writer=numbered)
        give_up, pause = time.monotonic() + retry_for, 0.01
        while True:
            try:
                done = self._log._call(self._log._stub.Append, request, timeout)
                break
            except _AGAIN:
                if time.monotonic() + pause > give_up:
                    raise
                time.sleep(pause)
                pause = min(1.0, pause * 2)
        self.next_number += 1
        return Appended(int(done.position), bool(done.already_there))


#: Bytes of data in a frame, about: one entry more than fits.
_FRAME_BYTES = 1 << 20
#: After these the same number is tried again.
_AGAIN = (errors.Busy, errors.Contended, errors.DeadlineExceeded, errors.Unavailable, NoSequencer, Uncertain)


def _unsigned(what: str, number: int, bits: int = 64) -> int:
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{what} = {number}: expected 0 to 2^{bits} - 1")
    return number


def _record(data: Recordable, streams: Iterable[bytes] = ()) -> pb.Record:
    named = [*data.streams, *streams] if isinstance(data, Record) else list(streams)
    plain = data.data if isinstance(data, Record) else data
    for part in (plain, *named):
        if not isinstance(part, (bytes, bytearray, memoryview)):
            raise TypeError(f"an entry is bytes, and so are names of streams, not {type(part).__name__}")
    return pb.Record(data=bytes(plain), streams=[bytes(stream) for stream in named])


def _entry(entry: pb.Entry) -> Entry:
    return Entry(entry.position, entry.data, tuple(entry.streams), entry.time_ms, entry.writer, entry.number)


def _kind(gap: int) -> GapKind:
    try:
        return GapKind(gap)
    except ValueError:
        # A newer server's: all that is known is that there is no entry.
        raise errors.Internal(f"gap of kind {gap}, which this client does not know") from None


def _found(position: int, found: pb.Found) -> Found:
    if found.WhichOneof("found") == "entry":
        return _entry(found.entry)
    return Gap(position, position + 1, _kind(found.gap), found.why)


def _failure(failed: pb.Failure) -> errors.Error:
    code = errors.STATUSES.get(failed.code, "UNKNOWN")
    position = int(failed.position) if failed.HasField("position") else None
    return errors.told(code, failed.error, failed.message, position, NAMES)
