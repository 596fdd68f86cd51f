"""The map: tables of records, addressed by partition key, clustering key and column, with conditional writes of several rows at once.

    shop = esker.map.Map(connection)
    shop.create_namespace("shop", if_not_exists=True)
    schema = Schema({"customer": Type.INT, "at": Type.TIMESTAMPTZ, "item": Type.TEXT}, ["customer"], [desc("at")], ["item"])
    orders = shop.create_table("shop", "orders", schema)     # or shop.table("shop", "orders")
    orders.put({"customer": 1, "at": now, "item": "tea"}, only_if=NOT_EXISTS)
    for order in orders.scan({"customer": 1}, limit=10):
        print(order["item"])

A row is a dictionary. A column that is not in it is absent; one that is `None` is null. Values are Python's, by the type of their column (`Type`).

Every call may raise what `esker.errors` has, besides what it names itself. A mutation that was given up (deadline, broken connection) may still have its
effect: read, or put the condition into it, before trying again.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Optional, Union

from . import errors
from ._proto import map_pb2 as pb
from ._proto import map_pb2_grpc
from .connection import Connection, replies

__all__ = [
    "ALWAYS",
    "EXISTS",
    "NEVER",
    "NOT_EXISTS",
    "Atomicity",
    "Capability",
    "Column",
    "ConditionFailed",
    "Delete",
    "Exists",
    "Filter",
    "IndexExists",
    "Map",
    "NamespaceExists",
    "NoSuchColumn",
    "NoSuchIndex",
    "NoSuchNamespace",
    "NoSuchTable",
    "NotEmpty",
    "OnlyIf",
    "Order",
    "Page",
    "PageToken",
    "Put",
    "ReadOnly",
    "Record",
    "Scan",
    "Schema",
    "Table",
    "TableExists",
    "ColumnExists",
    "Type",
    "Uncertain",
    "Value",
    "all_of",
    "any_of",
    "asc",
    "column",
    "desc",
]


class NoSuchNamespace(errors.Error, LookupError):
    """There is no namespace of that name (`about`). Create it, or fix the name."""


class NoSuchTable(errors.Error, LookupError):
    """There is no table of that name (`about`). Create it, or fix the name."""


class NoSuchColumn(errors.Error, LookupError):
    """The table has no column of that name (`about`). Add it, or fix the name."""


class NoSuchIndex(errors.Error, LookupError):
    """The column (`about`) has no index. Create it, or scan with a filter."""


class Exists(errors.Error):
    """The name (`about`) is taken. Choose another."""


class NamespaceExists(Exists):
    """There is such a namespace already."""


class TableExists(Exists):
    """There is such a table already."""


class ColumnExists(Exists):
    """The table has such a column already."""


class IndexExists(Exists):
    """The column has an index already."""


class NotEmpty(errors.Error):
    """The namespace has tables. Drop them first."""


class PageToken(errors.Invalid):
    """The token is not of this scan, or the table has changed since. Begin anew."""


class Uncertain(errors.Error):
    """The mutation may or may not be applied: read first."""


class ReadOnly(errors.Error):
    """The server's store takes no writes."""


class ConditionFailed(errors.Error):
    """The condition of a mutation does not hold; nothing was changed.

    Attributes:
        mutation: Which of the list, counted from 0.
        current: The row that it met, with what earlier mutations of the list would have made of it; `None`: there is none.
    """

    def __init__(self, mutation: int, current: Optional[Record]) -> None:
        message = f"the condition of mutation {mutation} does not hold"
        super().__init__(message, code="FAILED_PRECONDITION", name="condition-failed")
        self.mutation = mutation
        self.current = current


#: Classes of the names that the map has.
NAMES: Mapping[str, type[errors.Error]] = {
    "column-exists": ColumnExists,
    "index-exists": IndexExists,
    "namespace-exists": NamespaceExists,
    "no-column": NoSuchColumn,
    "no-index": NoSuchIndex,
    "no-namespace": NoSuchNamespace,
    "no-table": NoSuchTable,
    "not-empty": NotEmpty,
    "page-token": PageToken,
    "read-only": ReadOnly,
    "table-exists": TableExists,
    "uncertain": Uncertain,
}

#: An expiry that never comes: put to a row that was to expire, it stays.
NEVER = (1 << 64) - 1

Value = Union[bool, int, float, str, bytes, datetime.date, datetime.time, datetime.datetime]
"""A value of a column. Which of them: see `Type`."""


class Type(enum.Enum):
    """The type of a column, and what its values are in Python.

    Dates and times that Python cannot hold (years before 1 or after 9999, parts of a microsecond) are read as the number that is stored, which may be
    written too.
    """

    BOOLEAN = pb.DATA_TYPE_BOOLEAN
    """`bool`"""
    INT = pb.DATA_TYPE_INT
    """`int` of 32 bits"""
    BIGINT = pb.DATA_TYPE_BIGINT
    """`int` of 64 bits"""
    FLOAT = pb.DATA_TYPE_FLOAT
    """`float`, of which 32 bits are kept"""
    DOUBLE = pb.DATA_TYPE_DOUBLE
    """`float`"""
    TEXT = pb.DATA_TYPE_TEXT
    """`str`"""
    BLOB = pb.DATA_TYPE_BLOB
    """`bytes`"""
    DATE = pb.DATA_TYPE_DATE
    """`datetime.date`; stored as days since 1970-01-01"""
    TIME = pb.DATA_TYPE_TIME
    """`datetime.time` without a zone; stored as nanoseconds since midnight"""
    TIMESTAMP = pb.DATA_TYPE_TIMESTAMP
    """`datetime.datetime` without a zone, to milliseconds; stored as milliseconds since 1970-01-01"""
    TIMESTAMPTZ = pb.DATA_TYPE_TIMESTAMPTZ
    """`datetime.datetime` with a zone, to milliseconds, read in UTC; stored as unix milliseconds"""


class Atomicity(enum.Enum):
    """How far a list of mutations is atomic."""

    RECORD = pb.ATOMICITY_RECORD
    """One row."""
    PARTITION = pb.ATOMICITY_PARTITION
    """Rows of one partition."""
    STORAGE = pb.ATOMICITY_STORAGE
    """Everything in the storage."""


@dataclass(frozen=True)
class Capability:
    """What the server's storage can do.

    Attributes:
        storage: Its name.
        atomicity: How far a list of mutations is atomic.
        indexes: Whether it has secondary indexes.
        filters: Whether it evaluates filters and other orders.
        expiry: Whether rows may expire.
        persistent: Whether what was answered as durable survives the server.
        mutations_max: Most mutations of a list.
    """

    storage: str
    atomicity: Atomicity
    indexes: bool
    filters: bool
    expiry: bool
    persistent: bool
    mutations_max: int


@dataclass(frozen=True)
class Order:
    """A column, and whether rows are sorted by it from high to low. From `asc` and `desc`."""

    column: str
    descending: bool = False

    def _number(self) -> pb.Order:
        return pb.ORDER_DESC if self.descending else pb.ORDER_ASC


def asc(name: str) -> Order:
    """Sorted by this column from low to high."""
    return Order(name)


def desc(name: str) -> Order:
    """Sorted by this column from high to low."""
    return Order(name, True)


@dataclass(frozen=True)
class Schema:
    """What a table has.

    Attributes:
        columns: All columns with their types, in order; at most 1024.
        partition_key: Columns of the partition key, at least one, in order.
        clustering_key: Columns of the clustering key: names (rising) or `desc(name)`; none: a partition has one row.
        indexes: Columns with a secondary index.
    """

    columns: Mapping[str, Type]
    partition_key: Sequence[str]
    clustering_key: Sequence[Union[str, Order]] = ()
    indexes: Sequence[str] = ()

    def _message(self) -> pb.Schema:
        return pb.Schema(
            columns=[pb.ColumnType(name=name, type=Type(kind).value) for name, kind in self.columns.items()],
            partition_key=list(self.partition_key),
            clustering_key=[pb.ClusteringColumn(name=one.column, order=one._number()) for one in _orders(self.clustering_key)],
            indexes=list(self.indexes),
        )

    @classmethod
    def _from(cls, message: pb.Schema) -> Schema:
        return cls(
            columns={one.name: _known(Type, one.type) for one in message.columns},
            partition_key=tuple(message.partition_key),
            clustering_key=tuple(Order(one.name, one.order == pb.ORDER_DESC) for one in message.clustering_key),
            indexes=tuple(message.indexes),
        )


class Record(dict[str, Optional[Value]]):
    """A row: its columns that are there, those of the key first; `None` is null.

    Attributes:
        expires_ms: When it goes by itself, in unix milliseconds; `None`: it does not.
    """

    def __init__(self, columns: Iterable[tuple[str, Optional[Value]]], expires_ms: Optional[int] = None) -> None:
        super().__init__(columns)
        self.expires_ms = expires_ms


class Filter:
    """What must hold of a row, made by comparing a `column`, and joined by `&` and `|`.

    It never holds for null or an absent column, unless that is what it asks for.
    """

    def __and__(self, other: Filter) -> Filter:
        return all_of(self, other)

    def __or__(self, other: Filter) -> Filter:
        return any_of(self, other)

    def __bool__(self) -> bool:
        raise TypeError("a filter is neither true nor false here: join filters with & and |, in parentheses")

    def _message(self, table: Table) -> pb.Filter:
        raise NotImplementedError


@dataclass(frozen=True)
class _Compare(Filter):
    column: str
    compare: int
    value: Value

    def _message(self, table: Table) -> pb.Filter:
        value = table._encode(self.column, self.value)
        return pb.Filter(compare=pb.Comparison(column=self.column, compare=self.compare, value=value))  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Null(Filter):
    column: str
    null: bool

    def _message(self, table: Table) -> pb.Filter:
        return pb.Filter(is_null=self.column) if self.null else pb.Filter(is_not_null=self.column)


@dataclass(frozen=True)
class _Like(Filter):
    column: str
    pattern: str
    escape: str
    negated: bool

    def _message(self, table: Table) -> pb.Filter:
        like = pb.Like(column=self.column, pattern=self.pattern, escape=self.escape, negated=self.negated)
        return pb.Filter(like=like)


@dataclass(frozen=True)
class _Joined(Filter):
    filters: tuple[Filter, ...]
    every: bool

    def _message(self, table: Table) -> pb.Filter:
        filters = pb.Filters(filters=[one._message(table) for one in self.filters])
        return pb.Filter(all=filters) if self.every else pb.Filter(any=filters)


def all_of(*filters: Filter) -> Filter:
    """Holds where all of these do."""
    return _Joined(filters, True)


def any_of(*filters: Filter) -> Filter:
    """Holds where at least one of these does."""
    return _Joined(filters, False)


class Column:
    """A column in a filter: `column("price") > 5`, `column("item").like("t%")`. From `column`."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, value: Value) -> Filter:  # type: ignore[override]
        return _Compare(self.name, pb.COMPARE_EQUAL, value)

    def __ne__(self, value: Value) -> Filter:  # type: ignore[override]
        return _Compare(self.name, pb.COMPARE_NOT_EQUAL, value)

    def __lt__(self, value: Value) -> Filter:
        return _Compare(self.name, pb.COMPARE_LESS, value)

    def __le__(self, value: Value) -> Filter:
        return _Compare(self.name, pb.COMPARE_LESS_OR_EQUAL, value)

    def __gt__(self, value: Value) -> Filter:
        return _Compare(self.name, pb.COMPARE_GREATER, value)

    def __ge__(self, value: Value) -> Filter:
        return _Compare(self.name, pb.COMPARE_GREATER_OR_EQUAL, value)

    def is_null(self) -> Filter:
        """It is null or absent."""
        return _Null(self.name, True)

    def is_not_null(self) -> Filter:
        """It has a value."""
        return _Null(self.name, False)

    def like(self, pattern: str, *, escape: str = "") -> Filter:
        """It is text like a pattern: `%` is any text, `_` any character, each taken for itself behind the escape character."""
        return _Like(self.name, pattern, escape, False)

    def not_like(self, pattern: str, *, escape: str = "") -> Filter:
        """It is text, and not like the pattern."""
        return _Like(self.name, pattern, escape, True)


def column(name: str) -> Column:
    """A column, to make filters of."""
    return Column(name)


class OnlyIf(enum.Enum):
    """A condition of a mutation that is no filter."""

    ALWAYS = enum.auto()
    EXISTS = enum.auto()
    NOT_EXISTS = enum.auto()


#: Nothing must hold.
ALWAYS = OnlyIf.ALWAYS
#: The row must exist.
EXISTS = OnlyIf.EXISTS
#: The row must not exist.
NOT_EXISTS = OnlyIf.NOT_EXISTS

Condition = Union[OnlyIf, Filter]
"""What must hold of a row before it is changed: it exists, it does not, or it exists and a filter holds."""
Row = Mapping[str, Optional[Value]]
Key = Mapping[str, Value]
Expiry = Union[datetime.datetime, int]
"""When a row goes by itself: a `datetime` with a zone, unix milliseconds, or `NEVER`."""


@dataclass(frozen=True)
class Put:
    """Sets columns of a row and leaves the others as they are; makes the row if it is missing. For `Map.mutate`.

    Attributes:
        table: Its table.
        row: All columns of the key, and those to set; `None` sets null.
        only_if: What must hold of the row before.
        expires: When the row goes by itself, by the server's clock; left out: what was set earlier stays.
    """

    table: Table
    row: Row
    only_if: Condition = ALWAYS
    expires: Optional[Expiry] = None

    def _message(self) -> pb.Mutation:
        key: list[pb.Column] = []
        columns: list[pb.Column] = []
        for name, value in self.row.items():
            cell = pb.Column(name=name, value=self.table._encode(name, value))
            (key if name in self.table._key else columns).append(cell)
        put = pb.Put(columns=columns)
        if self.expires is not None:
            put.expires_ms = _expires_ms(self.expires)
        condition = _condition(self.table, self.only_if)
        return pb.Mutation(table=self.table._name, key=key, put=put, condition=condition)


@dataclass(frozen=True)
class Delete:
    """Removes a row; does nothing if it is missing. For `Map.mutate`.

    Attributes:
        table: Its table.
        key: All columns of the key.
        only_if: What must hold of the row before.
    """

    table: Table
    key: Key
    only_if: Condition = ALWAYS

    def _message(self) -> pb.Mutation:
        condition = _condition(self.table, self.only_if)
        return pb.Mutation(
            table=self.table._name, key=self.table._columns(self.key), delete=pb.Delete(), condition=condition
        )


Mutation = Union[Put, Delete]


@dataclass(frozen=True)
class Page:
    """A part of a scan's rows; there may be none, where a filter lets few through.

    Attributes:
        records: The rows.
        next: Where another scan goes on (`page_token`); empty at the end, and always with `order_by`.
    """

    records: list[Record] = field(default_factory=list)
    next: bytes = b""


class Map:
    """The tables of a server. It costs nothing, and any number of threads may use it.

    `timeout` of each method is in seconds; left out, it is that of the connection.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = map_pb2_grpc.MapStub(connection.channel)  # type: ignore[no-untyped-call]

    def _call(self, method: Any, request: Any, timeout: Optional[float]) -> Any:
        return self._connection.call(method, request, timeout=timeout, names=NAMES)

    def capability(self, *, timeout: Optional[float] = None) -> Capability:
        """What the storage can do."""
        told = self._call(self._stub.Capability, pb.CapabilityRequest(), timeout)
        same = ("storage", "indexes", "filters", "expiry", "persistent", "mutations_max")
        atomicity = _known(Atomicity, told.atomicity)
        return Capability(atomicity=atomicity, **{name: getattr(told, name) for name in same})

    # Namespaces and tables.

    def create_namespace(self, name: str, *, if_not_exists: bool = False, timeout: Optional[float] = None) -> bool:
        """Makes a namespace; whether this call did.

        Raises:
            NamespaceExists: There is one of that name, and `if_not_exists` is false.
        """
        request = pb.CreateNamespaceRequest(namespace=name, if_not_exists=if_not_exists)
        return bool(self._call(self._stub.CreateNamespace, request, timeout).created)

    def drop_namespace(self, name: str, *, if_exists: bool = False, timeout: Optional[float] = None) -> bool:
        """Drops a namespace without tables; whether this call did.

        Raises:
            NotEmpty: It has tables.
            NoSuchNamespace: There is none of that name, and `if_exists` is false.
        """
        request = pb.DropNamespaceRequest(namespace=name, if_exists=if_exists)
        return bool(self._call(self._stub.DropNamespace, request, timeout).dropped)

    def namespaces(self, *, timeout: Optional[float] = None) -> list[str]:
        """All namespaces, by name."""
        return list(self._call(self._stub.ListNamespaces, pb.ListNamespacesRequest(), timeout).namespaces)

    def tables(self, namespace: str, *, timeout: Optional[float] = None) -> list[str]:
        """Names of a namespace's tables, in order.

        Raises:
            NoSuchNamespace: There is none of that name.
        """
        return list(self._call(self._stub.ListTables, pb.ListTablesRequest(namespace=namespace), timeout).tables)

    def create_table(
        self,
        namespace: str,
        name: str,
        schema: Schema,
        *,
        if_not_exists: bool = False,
        timeout: Optional[float] = None,
    ) -> Table:
        """Makes a table. With `if_not_exists` one that exists is returned as it is, whatever its schema.

        Raises:
            TableExists: There is one of that name, and `if_not_exists` is false.
            NoSuchNamespace, NoSuchColumn: A name is missing.
            errors.Invalid: The schema makes no sense.
        """
        table = pb.Table(namespace=namespace, table=name)
        request = pb.CreateTableRequest(table=table, schema=schema._message(), if_not_exists=if_not_exists)
        self._call(self._stub.CreateTable, request, timeout)
        return self.table(namespace, name, timeout=timeout)

    def table(self, namespace: str, name: str, *, timeout: Optional[float] = None) -> Table:
        """A table that is there, with its schema as it is now.

        Raises:
            NoSuchTable: There is none of that name.
        """
        table = Table(self, namespace, name)
        table.refresh(timeout=timeout)
        return table

    def drop_table(
        self, namespace: str, name: str, *, if_exists: bool = False, timeout: Optional[float] = None
    ) -> bool:
        """Drops a table with its rows; whether this call did.

        Raises:
            NoSuchTable: There is none of that name, and `if_exists` is false.
        """
        request = pb.DropTableRequest(table=pb.Table(namespace=namespace, table=name), if_exists=if_exists)
        return bool(self._call(self._stub.DropTable, request, timeout).dropped)

    # Rows.

    def mutate(
        self, mutations: Iterable[Mutation], *, durable: bool = True, timeout: Optional[float] = None
    ) -> None:
        """Changes rows, all of them or none, if all conditions hold. Of two mutations of one row the later sees what the earlier did.

        Args:
            mutations: 1 to 16384 of `Put` and `Delete`; how far they may be apart is `Capability.atomicity`.
            durable: If false, returns when the change can be read: a power cut may take back the last moments.

        Raises:
            ConditionFailed: A condition does not hold; nothing was changed.
            errors.Invalid, NoSuchTable, NoSuchColumn, errors.Contended, errors.Full, ReadOnly: Nothing was changed.
            Uncertain, errors.DeadlineExceeded, errors.Unavailable: It may or may not be applied.
        """
        request = pb.MutateRequest(mutations=[one._message() for one in mutations], applied_only=not durable)
        told = self._call(self._stub.Mutate, request, timeout)
        if told.WhichOneof("outcome") == "condition_failed":
            failed = told.condition_failed
            current = _record(failed.current) if failed.HasField("current") else None
            raise ConditionFailed(int(failed.mutation), current)


class Table:
    """A table, from `Map.table` or `Map.create_table`. Any number of threads may use it.

    It knows its schema since it was made, and looks again for a column that it does not know. Where others change types, call `refresh`.
    """

    def __init__(self, map: Map, namespace: str, name: str) -> None:
        self._map = map
        self._stub = map._stub
        self.namespace = namespace
        self.name = name
        self.schema = Schema({}, ())
        """Its columns, key and indexes."""
        self.id = 0
        """As long as its rows live, whatever it is called; another one after it was truncated."""
        self.generation = 0
        """Grows with every change of the schema."""
        self._key: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"Table({self.namespace!r}, {self.name!r} at {self._map._connection.address})"

    @property
    def _name(self) -> pb.Table:
        return pb.Table(namespace=self.namespace, table=self.name)

    def _call(self, method: Any, request: Any, timeout: Optional[float]) -> Any:
        return self._map._call(method, request, timeout)

    # The table itself.

    def refresh(self, *, timeout: Optional[float] = None) -> None:
        """Reads the schema as it is now.

        Raises:
            NoSuchTable: It is gone.
        """
        told = self._call(self._stub.DescribeTable, pb.DescribeTableRequest(table=self._name), timeout)
        schema = Schema._from(told.schema)
        key = frozenset([*schema.partition_key, *(order.column for order in _orders(schema.clustering_key))])
        self.id, self.generation = int(told.id), int(told.generation)
        self.schema, self._key = schema, key

    def truncate(self, *, timeout: Optional[float] = None) -> None:
        """Removes all rows."""
        self._call(self._stub.TruncateTable, pb.TruncateTableRequest(table=self._name), timeout)
        self.refresh(timeout=timeout)

    def rename(self, to: str, *, timeout: Optional[float] = None) -> None:
        """Gives the table another name in its namespace.

        Raises:
            TableExists: There is one of that name.
        """
        self._call(self._stub.RenameTable, pb.RenameTableRequest(table=self._name, to=to), timeout)
        self.name = to
        self.refresh(timeout=timeout)

    def add_column(
        self, name: str, kind: Type, *, if_not_exists: bool = False, timeout: Optional[float] = None
    ) -> bool:
        """Adds a column, absent in all rows; whether this call did."""
        column = pb.ColumnType(name=name, type=Type(kind).value)
        return self._alter(pb.AlterTableRequest(add_column=column, if_needed=if_not_exists), timeout)

    def drop_column(self, name: str, *, if_exists: bool = False, timeout: Optional[float] = None) -> bool:
        """Drops a column that is neither part of the key nor indexed, with what it holds; whether this call did."""
        return self._alter(pb.AlterTableRequest(drop_column=name, if_needed=if_exists), timeout)

    def rename_column(self, name: str, to: str, *, timeout: Optional[float] = None) -> None:
        """Gives a column another name."""
        self._alter(pb.AlterTableRequest(rename_column=pb.RenameColumn(column=name, to=to)), timeout)

    def change_type(self, name: str, kind: Type, *, timeout: Optional[float] = None) -> None:
        """Gives a column a type that takes all its values: int to bigint or double, float to double, anything to text."""
        self._alter(pb.AlterTableRequest(change_type=pb.ColumnType(name=name, type=Type(kind).value)), timeout)

    def _alter(self, request: pb.AlterTableRequest, timeout: Optional[float]) -> bool:
        request.table.CopyFrom(self._name)
        changed = bool(self._call(self._stub.AlterTable, request, timeout).changed)
        self.refresh(timeout=timeout)
        return changed

    def create_index(self, name: str, *, if_not_exists: bool = False, timeout: Optional[float] = None) -> bool:
        """Indexes a column; returns when the rows that are there are in the index. Whether this call did."""
        request = pb.CreateIndexRequest(table=self._name, column=name, if_not_exists=if_not_exists)
        created = bool(self._call(self._stub.CreateIndex, request, timeout).created)
        self.refresh(timeout=timeout)
        return created

    def drop_index(self, name: str, *, if_exists: bool = False, timeout: Optional[float] = None) -> bool:
        """Drops a column's index; whether this call did."""
        request = pb.DropIndexRequest(table=self._name, column=name, if_exists=if_exists)
        dropped = bool(self._call(self._stub.DropIndex, request, timeout).dropped)
        self.refresh(timeout=timeout)
        return dropped

    # Rows.

    def put(
        self,
        row: Row,
        *,
        only_if: Condition = ALWAYS,
        expires: Optional[Expiry] = None,
        durable: bool = True,
        timeout: Optional[float] = None,
    ) -> None:
        """Sets columns of a row. See `Put` and `Map.mutate`."""
        self._map.mutate([Put(self, row, only_if, expires)], durable=durable, timeout=timeout)

    def delete(
        self, key: Key, *, only_if: Condition = ALWAYS, durable: bool = True, timeout: Optional[float] = None
    ) -> None:
        """Removes a row. See `Delete` and `Map.mutate`."""
        self._map.mutate([Delete(self, key, only_if)], durable=durable, timeout=timeout)

    def get(
        self,
        key: Key,
        *,
        columns: Iterable[str] = (),
        where: Optional[Filter] = None,
        timeout: Optional[float] = None,
    ) -> Optional[Record]:
        """Reads one row; `None`: there is no such row, or the filter does not hold.

        Args:
            key: All columns of the key.
            columns: Columns to return beside those of the key; none: all.
            where: What must hold of it.
        """
        request = pb.GetRequest(table=self._name, key=self._columns(key), columns=columns)
        if where is not None:
            request.filter.CopyFrom(where._message(self))
        told = self._call(self._stub.Get, request, timeout)
        return _record(told.record) if told.HasField("record") else None

    def scan(
        self,
        partition: Optional[Key] = None,
        *,
        at_least: Optional[Key] = None,
        above: Optional[Key] = None,
        at_most: Optional[Key] = None,
        below: Optional[Key] = None,
        index: Optional[tuple[str, Value]] = None,
        where: Optional[Filter] = None,
        columns: Iterable[str] = (),
        reverse: bool = False,
        order_by: Iterable[Union[str, Order]] = (),
        limit: int = 0,
        page_token: bytes = b"",
        timeout: Optional[float] = None,
    ) -> Scan:
        """Reads rows in order, as they are iterated over: all of them, those of a partition, or those that an index finds.

        Args:
            partition: All columns of the partition key.
            at_least, above, at_most, below: Bounds by values of the first columns of the clustering key, whichever way they are sorted. All but the last
                column must be equal. With `partition` only; one of `at_least` and `above`, one of `at_most` and `below`.
            index: A column that has an index, and its value; instead of `partition`.
            where: Only rows for which this holds.
            columns: Columns to return beside those of the key; none: all.
            reverse: Against the order of the clustering key; with `partition` only.
            order_by: Another order than the storage's: rows are sorted in the server, null and absent first, at most 2^20 of them and 256 MiB.
            limit: At most so many rows; 0: all.
            page_token: Goes on where a page of an earlier scan of the same rows ended: see `Scan.pages`.
            timeout: Seconds for all of it; left out: without limit.

        Raises:
            ValueError: The arguments do not go together.
            While iterating: NoSuchTable, NoSuchColumn, NoSuchIndex, PageToken, errors.Invalid.
        """
        low, high = self._bound("above", at_least, above), self._bound("below", at_most, below)
        request = pb.ScanRequest(
            table=self._name,
            reverse=reverse,
            columns=columns,
            order_by=[pb.OrderBy(column=one.column, order=one._number()) for one in _orders(order_by)],
            limit=limit,
            page_token=page_token,
        )
        if where is not None:
            request.filter.CopyFrom(where._message(self))
        if partition is not None:
            if index is not None:
                raise ValueError("a scan is over a partition or over an index, not both")
            request.partition.CopyFrom(pb.PartitionRange(key=self._columns(partition), low=low, high=high))
        elif low is not None or high is not None:
            raise ValueError("bounds are of one partition: give all columns of its key")
        elif index is not None:
            request.index.CopyFrom(pb.Column(name=index[0], value=self._encode(index[0], index[1])))
        else:
            request.all.SetInParent()
        return Scan(self._map._connection.stream(self._stub.Scan, request, timeout=timeout))

    def _bound(self, exclusive: str, inclusive_values: Optional[Key], exclusive_values: Optional[Key]) -> Optional[pb.Bound]:
        if inclusive_values is not None and exclusive_values is not None:
            raise ValueError(f"{exclusive}: there is another bound on that side")
        values = exclusive_values if inclusive_values is None else inclusive_values
        if values is None:
            return None
        return pb.Bound(values=self._columns(values), exclusive=inclusive_values is None)

    def _columns(self, values: Row) -> list[pb.Column]:
        return [pb.Column(name=name, value=self._encode(name, value)) for name, value in values.items()]

    def _encode(self, name: str, value: Optional[Value]) -> pb.Value:
        if name not in self.schema.columns:
            self.refresh()
        kind = self.schema.columns.get(name)
        if kind is None:
            message = f"column {name} does not exist"
            raise NoSuchColumn(message, code="NOT_FOUND", name="no-column", about=name)
        return _value(name, kind, value)


class Scan(Iterator[Record]):
    """Rows of a scan, read as far as they are asked for. From `Table.scan`.

    Iterate over it, or over `pages`. `close`, from any thread, or the end of a `with` statement ends it earlier.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._messages = replies(call, NAMES)
        self._ready: Iterator[Record] = iter(())
        self._closed = False

    def __enter__(self) -> Scan:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # The server keeps a scan for as long as its call lives.
        self.close()

    def close(self) -> None:
        """Ends it."""
        self._closed = True
        self._call.cancel()

    def __next__(self) -> Record:
        while True:
            if self._closed:
                raise StopIteration
            for record in self._ready:
                return record
            self._ready = iter(self._page().records)

    def pages(self) -> Iterator[Page]:
        """The rows in parts, each with the token of where it ends. Rows that were iterated over before are not among them."""
        while not self._closed:
            left = list(self._ready)
            self._ready = iter(())
            try:
                page = self._page()
            except StopIteration:
                if left:
                    yield Page(left)
                return
            yield Page(left + page.records, page.next)

    def _page(self) -> Page:
        """The next message; `StopIteration` at the end."""
        try:
            message = next(self._messages)
        except errors.Cancelled:
            if self._closed:
                raise StopIteration from None
            raise
        names = list(message.columns)
        return Page([_row(names, row) for row in message.rows], bytes(message.next_page_token))


_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=datetime.timezone.utc)
_MILLISECOND = datetime.timedelta(milliseconds=1)
_FIRST_DAY = datetime.date(1970, 1, 1).toordinal()
_LAST_DAY = datetime.date.max.toordinal()

#: Names of the fields of a value by type.
_FIELDS: Mapping[Type, str] = {kind: kind.name.lower() for kind in Type}


def _orders(orders: Iterable[Union[str, Order]]) -> list[Order]:
    return [Order(one) if isinstance(one, str) else one for one in orders]


def _known(kind: Any, number: int) -> Any:
    try:
        return kind(number)
    except ValueError:
        raise errors.Internal(f"{kind.__name__} {number}, which this client does not know") from None


def _condition(table: Table, only_if: Condition) -> Optional[pb.Condition]:
    if isinstance(only_if, Filter):
        return pb.Condition(holds=only_if._message(table))
    if only_if is OnlyIf.EXISTS:
        return pb.Condition(exists=True)
    return pb.Condition(not_exists=True) if only_if is OnlyIf.NOT_EXISTS else None


def _expires_ms(expires: Expiry) -> int:
    if isinstance(expires, datetime.datetime):
        if expires.tzinfo is None:
            raise ValueError(f"expires = {expires}: expected a time with a zone")
        expires = (expires - _EPOCH_UTC) // _MILLISECOND
    if not 0 <= expires <= NEVER:
        raise ValueError(f"expires = {expires}: expected 0 to 2^64 - 1 (unix milliseconds)")
    return expires


def _value(name: str, kind: Type, value: Optional[Value]) -> pb.Value:
    """A value as a message, by the type of its column."""
    if value is None:
        return pb.Value(null=pb.Null())
    fields: dict[str, Any] = {_FIELDS[kind]: _stored(name, kind, value)}
    try:
        return pb.Value(**fields)
    except (TypeError, ValueError) as error:
        raise type(error)(f"column {name} ({_FIELDS[kind]}): {value!r}: {error}") from None


def _stored(name: str, kind: Type, value: Value) -> Union[bool, int, float, str, bytes]:
    """What is stored for a value."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind in (Type.INT, Type.BIGINT):
        fits = whole
    elif kind is Type.BOOLEAN:
        fits = isinstance(value, bool)
    elif kind in (Type.FLOAT, Type.DOUBLE):
        fits = whole or isinstance(value, float)
    elif kind is Type.TEXT:
        fits = isinstance(value, str)
    elif kind is Type.BLOB:
        fits = isinstance(value, (bytes, bytearray, memoryview))
        if fits:
            return bytes(value)  # type: ignore[arg-type]
    else:
        if whole:
            return value  # type: ignore[return-value]
        return _stored_time(name, kind, value)
    if not fits:
        raise TypeError(f"column {name} is {_FIELDS[kind]}, not {type(value).__name__}")
    return value  # type: ignore[return-value]


def _stored_time(name: str, kind: Type, value: Value) -> int:
    wrong = TypeError(f"column {name} is {_FIELDS[kind]}, not {type(value).__name__}")
    if kind is Type.DATE:
        # A datetime is a date too, and its time would be lost.
        if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
            raise wrong
        return value.toordinal() - _FIRST_DAY
    if kind is Type.TIME:
        if not isinstance(value, datetime.time):
            raise wrong
        if value.tzinfo is not None:
            raise ValueError(f"column {name}: {value}: expected a time without a zone")
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return (seconds * 1_000_000 + value.microsecond) * 1_000
    if not isinstance(value, datetime.datetime):
        raise wrong
    zoned = kind is Type.TIMESTAMPTZ
    if (value.tzinfo is not None) != zoned:
        raise ValueError(f"column {name}: {value}: expected a time {'with' if zoned else 'without'} a zone")
    since = value - (_EPOCH_UTC if zoned else _EPOCH)
    ms, rest = divmod(since, _MILLISECOND)
    if rest:
        raise ValueError(f"column {name}: {value}: expected milliseconds at most")
    return ms


def _python(message: pb.Value) -> Optional[Value]:
    """A value as Python has it."""
    kind = message.WhichOneof("value")
    if kind == "null":
        return None
    if kind == "date":
        ordinal = message.date + _FIRST_DAY
        return datetime.date.fromordinal(ordinal) if 1 <= ordinal <= _LAST_DAY else message.date
    if kind == "time":
        return _time(message.time)
    if kind in ("timestamp", "timestamptz"):
        ms = message.timestamp if kind == "timestamp" else message.timestamptz
        try:
            return (_EPOCH if kind == "timestamp" else _EPOCH_UTC) + ms * _MILLISECOND
        except OverflowError:
            return ms
    value: Value = getattr(message, str(kind))
    return value


def _time(nanos: int) -> Union[datetime.time, int]:
    micros, rest = divmod(nanos, 1_000)
    if rest:
        return nanos
    seconds, micros = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return datetime.time(hour, minute, second, micros)


def _expiry(message: Any) -> Optional[int]:
    return int(message.expires_ms) if message.HasField("expires_ms") else None


def _record(message: pb.Record) -> Record:
    return Record(((one.name, _python(one.value)) for one in message.columns), _expiry(message))


def _row(names: Sequence[str], row: pb.Row) -> Record:
    """A row of a scan: a cell that says nothing is an absent column."""
    cells = ((name, cell) for name, cell in zip(names, row.cells) if cell.WhichOneof("value") is not None)
    return Record(((name, _python(cell)) for name, cell in cells), _expiry(row))
