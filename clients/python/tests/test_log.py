"""The log, as its users meet it."""

from __future__ import annotations

import datetime
import socket
import threading
import time
from collections.abc import Callable

import esker
import pytest
from esker.log import Entry, Gap, GapKind, Log, Logs, Record


def data(found: object) -> list[bytes]:
    """The data of entries; there are no gaps."""
    return [one.data for one in found if isinstance(one, Entry) or pytest.fail(f"{one}")]  # type: ignore[attr-defined]


def test_logs_are_created_opened_listed_renamed_and_deleted(logs: Logs) -> None:
    for name in ("list-b", "list-a", "list-c"):
        logs.create(name, esker.log.Options(width=2, retain_positions=7))
    assert [name for name in logs.names(after="list-") if name.startswith("list-")] == ["list-a", "list-b", "list-c"]
    info = logs.open("list-a").info()
    assert (info.name, info.tail, info.trimmed, info.sealed) == ("list-a", 0, 0, False)
    assert (info.options.width, info.options.retain_positions, info.options.slots) == (2, 7, 65_536)
    with pytest.raises(esker.log.LogExists):
        logs.create("list-a")
    logs.open("list-a").append(b"kept")
    renamed = logs.rename("list-a", "list-z")
    assert data(renamed.read_range(0)) == [b"kept"]
    with pytest.raises(esker.log.NoSuchLog) as told:
        logs.open("list-a")
    assert (told.value.code, told.value.name) == ("NOT_FOUND", "no-log")
    with pytest.raises(esker.log.LogExists):
        logs.rename("list-z", "list-b")
    for name in ("list-b", "list-c", "list-z"):
        logs.delete(name)
    with pytest.raises(esker.log.NoSuchLog):
        logs.delete("list-b")
    assert [name for name in logs.names() if name.startswith("list-")] == []


def test_names_are_listed_over_several_pages(logs: Logs) -> None:
    # A page has 1000 names.
    wanted = [f"page-{number:04}" for number in range(1_005)]
    for name in wanted:
        logs.create(name)
    assert [name for name in logs.names(after="page-") if name.startswith("page-")] == wanted
    for name in wanted:
        logs.delete(name)


def test_an_entry_is_read_as_it_was_appended(log: Log) -> None:
    before = int(time.time() * 1_000) - 1
    assert log.append(b"first") == 0
    assert log.append(Record(b"second", [b"eu"]), streams=[b"books"], durable=False) == 1
    first, second = log.read(0), log.read(1)
    assert isinstance(first, Entry) and isinstance(second, Entry)
    assert (first.position, first.data, first.streams) == (0, b"first", ())
    assert (second.data, second.streams) == (b"second", (b"eu", b"books"))
    assert before <= first.time_ms <= second.time_ms <= int(time.time() * 1_000) + 1
    assert first.number != second.number and first.writer == second.writer
    assert log.read(2) == Gap(2, 3, GapKind.BEYOND_TAIL)
    assert log.tail().position == 2


def test_a_batch_has_consecutive_positions(log: Log) -> None:
    log.append(b"before")
    positions = log.append_batch([b"a", bytearray(b"b"), memoryview(b"c"), Record(b"d")])
    assert positions == range(1, 5)
    assert data(log.read_range(1, 5)) == [b"a", b"b", b"c", b"d"]
    with pytest.raises(esker.errors.Invalid, match="BATCH_MAX"):
        log.append_batch([])


def test_a_conditional_append_is_told_where_the_tail_is(log: Log) -> None:
    assert log.append_at(0, [b"a", b"b"]) == range(0, 2)
    with pytest.raises(esker.log.NotTail) as told:
        log.append_at(1, [b"c"])
    assert (told.value.position, told.value.code) == (2, "ABORTED")
    assert log.append_at(2, [b"c"]) == range(2, 3)


def test_a_pipeline_answers_each_append_and_goes_on_after_a_failure(log: Log) -> None:
    limit = log.info().options.entry_bytes_max
    assert limit is not None
    with log.appender(in_flight_max=16) as appender:
        futures = [appender.append(b"%d" % number) for number in range(100)]
        bad = appender.append(bytes(limit + 1))
        last = appender.append(b"last", streams=[b"s"])
    assert [future.result(0) for future in futures] == list(range(100))
    assert isinstance(bad.exception(0), esker.errors.Invalid), bad.exception(0)
    assert last.result(0) == 100
    assert data(log.read_range(0)) == [b"%d" % number for number in range(100)] + [b"last"]
    with pytest.raises(esker.errors.Cancelled):
        appender.append(b"closed")


def test_a_pipeline_sends_what_has_gathered_together(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    requests = esker.log.Appender._requests

    def noted(appender: esker.log.Appender) -> object:
        for request in requests(appender):
            sent.append(len(request.records) + request.HasField("record"))
            yield request

    monkeypatch.setattr(esker.log.Appender, "_requests", noted)
    with log.appender(in_flight_max=1_000) as appender:
        assert appender.append(b"0").result(30) == 0
        futures = [appender.append(b"%d" % number, streams=[b"s"]) for number in range(1, 2_001)]
    assert [future.result(0) for future in futures] == list(range(1, 2_001))
    assert sent[0] == 1 and sum(sent) == 2_001
    assert len(sent) < 2_001, "each went alone"
    assert data(log.read_range(0)) == [b"%d" % number for number in range(2_001)]
    found = log.read(2_000)
    assert isinstance(found, Entry) and found.streams == (b"s",)


def test_a_pipeline_has_no_more_under_way_than_it_may(log: Log) -> None:
    taken = 0

    def entries(count: int) -> object:
        nonlocal taken
        for number in range(count):
            taken += 1
            yield b"%d" % number

    positions = log.append_many(entries(500), in_flight_max=8)  # type: ignore[arg-type]
    assert next(positions) == 0
    assert taken <= 8 + 1
    assert list(positions) == list(range(1, 500))


def test_a_pipeline_waits_for_room_no_longer_than_it_may() -> None:
    # Takes connections, and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = esker.connect("127.0.0.1:%d" % listener.getsockname()[1])
        appender = Log(Logs(connection), "silent").appender(in_flight_max=2)
        futures = [appender.append(b"a"), appender.append(b"b")]
        with pytest.raises(esker.errors.DeadlineExceeded, match="no room"):
            appender.append(b"c", timeout=0.2)
        connection.close()
        for future in futures:
            with pytest.raises(esker.errors.Error):
                future.result(10)
        appender.close()
        with pytest.raises(esker.errors.Error):
            appender.append(b"d", timeout=0.2)


def test_pipelines_of_several_threads_share_a_log(log: Log) -> None:
    positions: list[int] = []

    def work(name: int) -> None:
        positions.extend(log.append_many(b"%d" % name for _ in range(200)))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(positions) == list(range(800))


def test_a_range_is_read_in_parts_and_ends_in_a_gap_past_the_tail(log: Log) -> None:
    entries = [bytes([number]) * 10_000 for number in range(50)]
    list(log.append_many(entries))
    assert data(log.read_range(0, bytes_max=30_000)) == entries
    found = list(log.read_range(48, 1_000_000))
    assert data(found[:2]) == entries[48:]
    assert found[2:] == [Gap(50, 1_000_000, GapKind.BEYOND_TAIL)]
    assert list(log.read_range(50)) == []
    assert list(log.read_range(60, 70)) == [Gap(60, 70, GapKind.BEYOND_TAIL)]
    with pytest.raises(ValueError, match="ends before it starts"):
        list(log.read_range(5, 3))


def test_filling_and_trimming_leave_typed_gaps(log: Log) -> None:
    log.append_batch([b"a", b"b", b"c", b"d"])
    with pytest.raises(esker.log.Taken) as taken:
        log.fill(1)
    assert taken.value.position == 1
    with pytest.raises(esker.log.PastTail) as past:
        log.fill(9)
    assert past.value.position == 4
    log.trim(1)
    log.trim(1)
    assert log.read(1) == Gap(1, 2, GapKind.TRIMMED)
    assert log.trim_to(1) == 1
    assert log.info().trimmed == 1
    with pytest.raises(esker.log.Trimmed):
        log.fill(0)
    with pytest.raises(esker.log.PastTail):
        log.trim_to(100)
    followed = list(log.follow(0, until_tail=True))
    assert followed[0] == Gap(0, 1, GapKind.TRIMMED)
    gaps = [one for one in followed if isinstance(one, Gap)]
    assert {one.kind for one in gaps} == {GapKind.TRIMMED}
    assert sum(one.end - one.start for one in gaps) == 2
    assert data(one for one in followed if isinstance(one, Entry)) == [b"c", b"d"]


def test_a_follower_waits_for_what_comes_and_ends_with_the_log(log: Log) -> None:
    log.append(b"before")
    follower = log.follow("tail")
    threading.Timer(0.2, lambda: log.append(b"after")).start()
    found = next(follower)
    assert isinstance(found, Entry) and (found.position, found.data) == (1, b"after")
    assert follower.position == 2
    assert log.seal() == 2
    assert list(follower) == [] and follower.sealed_at == 2
    assert log.seal() == 2 and log.info().sealed
    with pytest.raises(esker.log.Sealed) as told:
        log.append(b"late")
    assert told.value.position == 2


def test_a_follower_is_ended_from_another_thread(log: Log) -> None:
    follower = log.follow()
    threading.Timer(0.2, follower.close).start()
    began = time.monotonic()
    assert list(follower) == []
    assert time.monotonic() - began < 10


def test_following_starts_at_a_position_or_a_time_and_can_be_limited_in_time(log: Log) -> None:
    log.append_batch([b"a", b"b"])
    time.sleep(0.05)
    now = datetime.datetime.now(datetime.timezone.utc)
    log.append(b"c")
    assert data(log.follow(now, until_tail=True)) == [b"c"]
    assert data(log.follow(1, until_tail=True)) == [b"b", b"c"]
    with pytest.raises(ValueError, match="zone"):
        log.follow(datetime.datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="first"):
        log.follow("end")
    with pytest.raises(esker.errors.DeadlineExceeded), log.follow("tail", timeout=0.3) as follower:
        next(follower)


def test_a_stream_is_followed_without_the_rest(log: Log) -> None:
    for number in range(20):
        log.append(b"%d" % number, streams=[b"even" if number % 2 == 0 else b"odd", b"all"])
    assert data(log.follow(stream=b"odd", until_tail=True)) == [b"%d" % number for number in range(1, 20, 2)]
    assert len(list(log.follow(stream=b"all", until_tail=True))) == 20
    assert list(log.follow(stream=b"none", until_tail=True)) == []


def test_a_consumer_goes_on_where_it_was(log: Log) -> None:
    assert log.consumer("billing") is None
    log.set_consumer("billing", 17)
    assert log.consumer("billing") == 17
    log.forget_consumer("billing")
    log.forget_consumer("billing")
    assert log.consumer("billing") is None


def test_a_named_writers_entry_is_there_once(log: Log) -> None:
    writer = log.writer("python")
    first = writer.append(b"a")
    assert not first.already_there and writer.next_number == 1
    # As after an answer that was lost.
    writer.next_number = 0
    assert writer.append(b"a") == esker.log.Appended(first.position, True)
    again = log.writer("python")
    assert again.next_number == 1
    with pytest.raises(esker.errors.Fenced):
        writer.append(b"late")
    again.append(b"b")
    assert data(log.read_range(0)) == [b"a", b"b"]


def test_a_reshaped_log_goes_on(log: Log) -> None:
    log.append_batch([b"a", b"b", b"c"])
    log.reshape(7, 11)
    assert (log.info().options.width, log.info().options.slots) == (7, 11)
    assert list(log.append_many(b"%d" % number for number in range(200))) == list(range(3, 203))
    assert len(list(log.read_range(0))) == 203


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_numbers_out_of_range_are_named(log: Log, number: int) -> None:
    for call in (log.read, log.fill, log.trim, log.trim_to):
        with pytest.raises(ValueError, match=r"position = .*expected 0 to 2\^64 - 1"):
            call(number)
    with pytest.raises(TypeError, match="an entry is bytes, .*not str"):
        log.append("text")  # type: ignore[arg-type]


def test_what_a_killed_server_had_acknowledged_is_there_again(
    serve: Callable[..., object], tmp_path: object
) -> None:
    folder = str(tmp_path)
    server = serve(store=f"{folder}/store")
    with esker.connect(server.address) as connection:  # type: ignore[attr-defined]
        log = Logs(connection).create("durable")
        appender = log.appender()
        acknowledged = [appender.append(b"%d" % number).result(30) for number in range(50)]
        follower = log.follow("tail")
        server.kill()  # type: ignore[attr-defined]
        with pytest.raises(esker.errors.Unavailable):
            next(follower)
        with pytest.raises(esker.errors.Unavailable):
            log.tail()
        with pytest.raises(esker.errors.Unavailable):
            appender.append(b"lost").result(30)
        appender.close()
    server = serve(store=f"{folder}/store")
    with esker.connect(server.address) as connection:  # type: ignore[attr-defined]
        log = Logs(connection).open("durable")
        assert data(log.read_range(0, 50)) == [b"%d" % number for number in acknowledged]
