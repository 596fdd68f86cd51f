"""Client of Esker: shared logs over gRPC.

    import esker

    with esker.connect("127.0.0.1:7400") as connection:
        orders = esker.log.Logs(connection).create("orders")
        position = orders.append(b"a book")            # durable
        for found in orders.follow(until_tail=True):
            ...

`esker.log` is the shared log, `esker.errors` what can go wrong, `esker.connection` the way to a server.
"""

from . import connection, errors, log
from .connection import Connection, Tls, connect
from .errors import Error

__all__ = ["Connection", "Error", "Tls", "connect", "connection", "errors", "log"]
__version__ = "0.1.0"
