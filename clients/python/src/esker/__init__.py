"""Client of Esker: shared logs, and tables of records, over gRPC.

    import esker

    with esker.connect("127.0.0.1:7400") as connection:
        orders = esker.log.Logs(connection).create("orders")
        position = orders.append(b"a book")            # durable
        for found in orders.follow(until_tail=True):
            ...
        people = esker.map.Map(connection).table("shop", "people")
        people.put({"id": 7, "name": "Ada"}, only_if=esker.map.NOT_EXISTS)

`esker.log` is the shared log, `esker.map` the map, `esker.errors` what can go wrong, `esker.connection` the way to a server.
"""

from . import connection, errors, log, map
from .connection import Connection, Tls, connect
from .errors import Error

__all__ = ["Connection", "Error", "Tls", "connect", "connection", "errors", "log", "map"]
__version__ = "0.1.0"
