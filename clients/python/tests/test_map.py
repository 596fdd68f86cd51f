"""The map, as its users meet it."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from typing import Any

import esker
import pytest
from esker.map import (
    EXISTS,
    NEVER,
    NOT_EXISTS,
    Atomicity,
    ConditionFailed,
    Delete,
    Map,
    Put,
    Record,
    Schema,
    Table,
    Type,
    any_of,
    asc,
    column,
    desc,
)

UTC = datetime.timezone.utc


def ats(rows: Any) -> list[int]:
    """What rows have in their clustering column."""
    return [row["at"] for row in rows]


def fill(orders: Table, count: int, *, customer: int = 1, item: str = "tea") -> None:
    rows = [Put(orders, {"customer": customer, "at": at, "item": item}) for at in range(count)]
    for first in range(0, count, 1_000):
        orders._map.mutate(rows[first : first + 1_000])


def test_values_of_every_type_come_back_as_they_were_put_and_null_is_not_absent(shop: Map) -> None:
    columns = {kind.name.lower(): kind for kind in Type}
    schema = Schema({"key": Type.INT, **columns, "nothing": Type.TEXT, "absent": Type.TEXT}, ["key"])
    table = shop.create_table("shop", "types", schema)
    assert table.schema == Schema(schema.columns, ("key",), (), ())
    row = {
        "key": 1,
        "boolean": True,
        "int": -(1 << 31),
        "bigint": (1 << 63) - 1,
        "float": 0.5,
        "double": 1e300,
        "text": "日本語",
        "blob": b"\x00\xff",
        "date": datetime.date(2024, 2, 29),
        "time": datetime.time(13, 37, 0, 5),
        "timestamp": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000),
        "timestamptz": datetime.datetime(2024, 2, 29, 13, 37, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        "nothing": None,
    }
    table.put(row)
    found = table.get({"key": 1})
    assert found == row and list(table.scan()) == [row]
    assert found is not None and isinstance(found["timestamptz"], datetime.datetime)
    assert found["timestamptz"].utcoffset() == datetime.timedelta(0)
    assert list(found) == ["key", *columns, "nothing"] and "absent" not in found
    # What Python's own types do not hold is the number that is stored.
    beyond = {"key": 2, "date": -800_000, "time": 1, "timestamp": 1 << 62, "timestamptz": -(1 << 62)}
    table.put(beyond)
    assert table.get({"key": 2}) == beyond
    for name, value in (("date", datetime.date.max), ("date", datetime.date.min), ("time", datetime.time.max)):
        table.put({"key": 3, name: value})
        found = table.get({"key": 3})
        assert found is not None and found[name] == value


@pytest.mark.parametrize(
    ("name", "value", "kind", "says"),
    [
        ("int", True, TypeError, "int, not bool"),
        ("int", 1 << 31, ValueError, "column int"),
        ("bigint", 0.5, TypeError, "bigint, not float"),
        ("boolean", 1, TypeError, "boolean, not int"),
        ("double", "1", TypeError, "double, not str"),
        ("text", b"a", TypeError, "text, not bytes"),
        ("blob", "a", TypeError, "blob, not str"),
        ("date", datetime.datetime(2024, 1, 1), TypeError, "date, not datetime"),
        ("time", datetime.time(1, tzinfo=UTC), ValueError, "without a zone"),
        ("timestamp", datetime.datetime(2024, 1, 1, tzinfo=UTC), ValueError, "without a zone"),
        ("timestamptz", datetime.datetime(2024, 1, 1), ValueError, "with a zone"),
        ("timestamptz", datetime.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC), ValueError, "milliseconds"),
    ],
)
def test_a_value_of_another_type_is_refused_before_it_is_sent(
    shop: Map, name: str, value: Any, kind: type[Exception], says: str
) -> None:
    columns = {one.name.lower(): one for one in Type}
    table = shop.create_table("shop", "refused", Schema({"key": Type.INT, **columns}, ["key"]), if_not_exists=True)
    with pytest.raises(kind, match=says):
        table.put({"key": 1, name: value})
    assert table.get({"key": 1}) is None


def test_a_condition_that_does_not_hold_tells_the_row_and_changes_nothing(orders: Table, shop: Map) -> None:
    key = {"customer": 1, "at": 1}
    orders.put({**key, "item": "tea", "price": 2.5}, only_if=NOT_EXISTS)
    with pytest.raises(ConditionFailed) as told:
        shop.mutate([Put(orders, {"customer": 2, "at": 1}), Put(orders, key, only_if=NOT_EXISTS)])
    assert (told.value.mutation, told.value.current) == (1, {**key, "item": "tea", "price": 2.5})
    assert orders.get({"customer": 2, "at": 1}) is None
    with pytest.raises(ConditionFailed) as told:
        orders.delete({"customer": 9, "at": 9}, only_if=EXISTS)
    assert told.value.current is None
    orders.put({**key, "price": 3.0}, only_if=(column("price") < 3) & (column("item") == "tea"))
    with pytest.raises(ConditionFailed):
        orders.put({**key, "price": 9.0}, only_if=(column("price") < 3) | column("item").is_null())
    assert orders.get(key) == {**key, "item": "tea", "price": 3.0}
    orders.put({**key, "price": None})
    assert orders.get(key, columns=["price"]) == {**key, "price": None}
    assert orders.get(key, where=column("price").is_not_null()) is None
    orders.delete(key)
    assert orders.get(key) is None


def test_a_list_of_changes_is_applied_whole_over_tables(orders: Table, shop: Map) -> None:
    assert shop.capability().atomicity is Atomicity.STORAGE
    stock = shop.create_table("shop", "stock", Schema({"item": Type.TEXT, "left": Type.INT}, ["item"]))
    stock.put({"item": "tea", "left": 1})

    def sell(at: int) -> None:
        taken = Put(stock, {"item": "tea", "left": 0}, only_if=column("left") == 1)
        shop.mutate([Put(orders, {"customer": 1, "at": at, "item": "tea"}, only_if=NOT_EXISTS), taken])

    sell(1)
    with pytest.raises(ConditionFailed) as told:
        sell(2)
    assert told.value.mutation == 1
    assert ats(orders.scan()) == [1]
    shop.mutate([Delete(stock, {"item": "tea"}), Put(orders, {"customer": 1, "at": 1, "item": "cake"})], durable=False)
    assert list(stock.scan()) == []


def test_updates_under_conditions_from_many_threads_lose_none(orders: Table) -> None:
    orders.put({"customer": 1, "at": 1, "price": 0.0})

    def work() -> None:
        for _ in range(25):
            while True:
                row = orders.get({"customer": 1, "at": 1})
                assert row is not None and isinstance(row["price"], float)
                try:
                    orders.put({"customer": 1, "at": 1, "price": row["price"] + 1}, only_if=column("price") == row["price"])
                    break
                except ConditionFailed:
                    pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    row = orders.get({"customer": 1, "at": 1})
    assert row is not None and row["price"] == 100.0


def test_scans_take_bounds_orders_indexes_and_filters(orders: Table) -> None:
    fill(orders, 10)
    orders.put({"customer": 2, "at": 7, "item": "cake", "price": 1.0})
    one = {"customer": 1}
    assert ats(orders.scan(one)) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert ats(orders.scan(one, at_least={"at": 3}, below={"at": 6})) == [5, 4, 3]
    assert ats(orders.scan(one, above={"at": 3}, at_most={"at": 6}, reverse=True)) == [4, 5, 6]
    assert ats(orders.scan(one, reverse=True, limit=2)) == [0, 1]
    assert list(orders.scan(index=("item", "cake"), columns=["price"])) == [{"customer": 2, "at": 7, "price": 1.0}]
    assert len(list(orders.scan())) == 11
    some = any_of(column("at") >= 9, column("at") <= 0, column("item").like("c%"))
    assert sorted(ats(orders.scan(where=some))) == [0, 7, 9]
    assert ats(orders.scan(where=column("item").not_like("t_a"))) == [7]
    assert ats(orders.scan(where=column("at") != 5, order_by=[asc("at"), desc("customer")], limit=7)) == [0, 1, 2, 3, 4, 6, 7]
    for arguments in ({"at_least": {"at": 1}}, {"partition": one, "index": ("item", "a")}):
        with pytest.raises(ValueError):
            orders.scan(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="another bound"):
        orders.scan(one, at_least={"at": 1}, above={"at": 1})
    with pytest.raises(TypeError, match="&"):
        assert column("at") == 1


def test_a_scan_goes_on_from_the_token_of_every_page(orders: Table) -> None:
    fill(orders, 12_000, item="x" * 100)
    pages = list(orders.scan({"customer": 1}).pages())
    assert len(pages) > 2 and sum(len(page.records) for page in pages) == 12_000
    expected = list(range(11_999, -1, -1))
    seen = 0
    for page in pages:
        seen += len(page.records)
        if page.next:
            assert ats(orders.scan({"customer": 1}, page_token=page.next)) == expected[seen:]
    assert not pages[-1].next
    # Rows first, then pages: none twice, none left out.
    scan = orders.scan({"customer": 1})
    first = [next(scan)["at"] for _ in range(3)]
    assert first + [at for page in scan.pages() for at in ats(page.records)] == expected
    with pytest.raises(esker.map.PageToken) as told:
        list(orders.scan({"customer": 2}, page_token=pages[0].next))
    assert told.value.name == "page-token" and isinstance(told.value, ValueError)


def test_a_scan_that_is_closed_ends_and_frees_its_place(serve: Callable[..., Any], tmp_path: Any) -> None:
    (tmp_path / "esker.toml").write_text("[serve]\ngrpc_followers = 1\n")
    server = serve(config=str(tmp_path / "esker.toml"))
    with esker.connect(server.address) as connection:
        shop = Map(connection)
        shop.create_namespace("shop")
        schema = Schema({"customer": Type.INT, "at": Type.INT, "item": Type.TEXT}, ["customer"], ["at"])
        orders = shop.create_table("shop", "orders", schema)
        fill(orders, 20_000, item="x" * 1_000)
        with orders.scan() as scan:
            assert next(scan)["at"] == 0
            with pytest.raises(esker.errors.Busy, match="followers_max"):
                next(orders.scan())
        assert list(scan) == []
        # The server learns of it a moment later.
        for _ in range(100):
            try:
                assert next(orders.scan())["at"] == 0
                return
            except esker.errors.Busy:
                time.sleep(0.05)
        pytest.fail("the scan that was closed goes on")


def test_rows_go_when_they_expire_and_say_when_that_is(orders: Table) -> None:
    soon = int(time.time() * 1_000) + 300
    orders.put({"customer": 1, "at": 1}, expires=soon)
    orders.put({"customer": 1, "at": 2}, expires=datetime.datetime(2100, 1, 1, tzinfo=UTC))
    orders.put({"customer": 1, "at": 3}, expires=soon)
    orders.put({"customer": 1, "at": 3}, expires=NEVER)
    expiries = {row["at"]: row.expires_ms for row in orders.scan()}
    assert expiries == {1: soon, 2: 4_102_444_800_000, 3: None}
    row = orders.get({"customer": 1, "at": 1})
    assert row is not None and row.expires_ms == soon
    time.sleep(0.4)
    assert ats(orders.scan()) == [3, 2]
    with pytest.raises(ValueError, match="with a zone"):
        orders.put({"customer": 1, "at": 1}, expires=datetime.datetime(2100, 1, 1))
    with pytest.raises(ValueError, match="2\\^64"):
        orders.put({"customer": 1, "at": 1}, expires=-1)


def test_tables_change_and_what_is_missing_or_taken_is_named(shop: Map, orders: Table) -> None:
    orders.put({"customer": 1, "at": 1, "item": "tea", "price": 2.5})
    with pytest.raises(esker.map.TableExists) as taken:
        shop.create_table("shop", orders.name, orders.schema)
    assert (taken.value.about, taken.value.code) == (f"shop.{orders.name}", "ALREADY_EXISTS")
    assert shop.create_table("shop", orders.name, orders.schema, if_not_exists=True).id == orders.id
    assert orders.add_column("day", Type.DATE) and not orders.add_column("day", Type.DATE, if_not_exists=True)
    orders.rename_column("item", "what")
    orders.change_type("price", Type.TEXT)
    row = {"customer": 1, "at": 1, "what": "tea", "price": "2.5"}
    assert orders.get({"customer": 1, "at": 1}) == row
    assert orders.drop_index("what") and not orders.drop_index("what", if_exists=True)
    with pytest.raises(esker.map.NoSuchIndex) as missing:
        list(orders.scan(index=("what", "tea")))
    assert missing.value.about == "what"
    assert orders.create_index("price") and list(orders.scan(index=("price", "2.5"))) == [row]
    # Another client's table learns of a column that it does not know.
    other = shop.table("shop", orders.name)
    orders.add_column("late", Type.INT)
    other.put({"customer": 1, "at": 2, "late": 5})
    assert orders.get({"customer": 1, "at": 2}) == {"customer": 1, "at": 2, "late": 5}
    for call in (lambda: orders.put({"customer": 1, "at": 1, "colour": 1}), lambda: orders.drop_column("colour")):
        with pytest.raises(esker.map.NoSuchColumn) as missing:
            call()
        assert missing.value.about == "colour" and isinstance(missing.value, LookupError)
    with pytest.raises(esker.errors.Invalid, match="column at is missing"):
        orders.put({"customer": 1})
    orders.rename(orders.name + " renamed")
    assert orders.name in shop.tables("shop")
    old = orders.id
    orders.truncate()
    assert orders.id != old and list(orders.scan()) == []
    with pytest.raises(esker.map.NotEmpty):
        shop.drop_namespace("shop")
    assert shop.drop_table("shop", orders.name) and not shop.drop_table("shop", orders.name, if_exists=True)
    with pytest.raises(esker.map.NoSuchTable):
        orders.put({"customer": 1, "at": 1})
    with pytest.raises(esker.map.NoSuchNamespace) as gone:
        shop.tables("nowhere")
    assert gone.value.about == "nowhere"
    assert shop.create_namespace("empty") and not shop.create_namespace("empty", if_not_exists=True)
    with pytest.raises(esker.map.NamespaceExists):
        shop.create_namespace("empty")
    assert "empty" in shop.namespaces() and shop.drop_namespace("empty")
    assert not shop.drop_namespace("empty", if_exists=True)


def test_what_a_killed_server_had_acknowledged_is_there_again(serve: Callable[..., Any], tmp_path: Any) -> None:
    server = serve(store=f"{tmp_path}/store")
    with esker.connect(server.address) as connection:
        shop = Map(connection)
        shop.create_namespace("shop")
        table = shop.create_table("shop", "t", Schema({"k": Type.INT}, ["k"]))
        for k in range(50):
            table.put({"k": k})
        server.kill()
        with pytest.raises(esker.errors.Unavailable):
            table.put({"k": 99})
        with pytest.raises(esker.errors.Unavailable):
            list(table.scan())
    server = serve(store=f"{tmp_path}/store")
    with esker.connect(server.address) as connection:
        rows = list(Map(connection).table("shop", "t").scan())
    assert rows[:3] == [{"k": 0}, {"k": 1}, {"k": 2}] and len(rows) == 50
    assert isinstance(rows[0], Record)
