"""What can go wrong, as exceptions that say what to do.

A server's error carries a name beside its gRPC status (`esker-error` in the trailing metadata) and, where there is one,
a position. The name chooses the class, so no caller needs to look at message texts. Errors of one face stand with that
face, such as `esker.log.NotTail` or `esker.map.NoSuchTable`; what any face may meet is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import grpc

__all__ = [
    "Busy",
    "Cancelled",
    "Contended",
    "Damaged",
    "DeadlineExceeded",
    "Error",
    "Fenced",
    "Full",
    "Internal",
    "Invalid",
    "Stopping",
    "StoreFailed",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
]


class Error(Exception):
    """An error of the server, or on the way to it.

    Attributes:
        message: What happened, for people.
        code: Name of the gRPC status, such as `"ABORTED"`.
        name: Name of the error, such as `"not-tail"`; empty where the server named none.
        position: The position that the error is about, if there is one.
        about: The name that is missing or taken, if there is one: a namespace, a table, a column.
    """

    def __init__(
        self, message: str, *, code: str = "UNKNOWN", name: str = "", position: Optional[int] = None, about: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.name = name
        self.position = position
        self.about = about


class Invalid(Error, ValueError):
    """Something is wrong with the input: the message names it, and the limit. Fix it."""


class Contended(Error):
    """Others were faster, again and again. Nothing happened; try again."""


class Fenced(Error):
    """Another client writes now, or the writer was opened again. Stop, or open it anew."""


class Unsupported(Error):
    """The server, or its store, cannot do it."""


class Full(Error):
    """The store is full. Nothing happened; free space."""


class Busy(Error):
    """The server has too much under way. Nothing happened; try again with fewer calls at once."""


class Damaged(Error):
    """What stands in the store does not make sense: data loss."""


class StoreFailed(Error):
    """The server's store failed. What was being written may or may not be there."""


class Unavailable(Error, ConnectionError):
    """The server cannot be reached, or the connection broke. What was being written may or may not be there."""


class Stopping(Unavailable):
    """The server goes away. What was being written may or may not be there."""


class DeadlineExceeded(Error, TimeoutError):
    """The answer did not come in time. What was being written may or may not be there."""


class Cancelled(Error):
    """The call was given up here."""


class Unauthenticated(Error, PermissionError):
    """The token is missing or wrong."""


class Internal(Error):
    """Anything else."""


#: Classes of the names that every face may meet.
NAMES: Mapping[str, type[Error]] = {
    "busy": Busy,
    "contended": Contended,
    "damaged": Damaged,
    "fenced": Fenced,
    "full": Full,
    "invalid": Invalid,
    "stopping": Stopping,
    "store": StoreFailed,
    "unsupported": Unsupported,
}

#: Classes of statuses that come without a name: from the transport, or before a face was reached.
CODES: Mapping[str, type[Error]] = {
    "CANCELLED": Cancelled,
    "DATA_LOSS": Damaged,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "INVALID_ARGUMENT": Invalid,
    "OUT_OF_RANGE": Invalid,
    "PERMISSION_DENIED": Unauthenticated,
    "RESOURCE_EXHAUSTED": Busy,
    "UNAUTHENTICATED": Unauthenticated,
    "UNAVAILABLE": Unavailable,
    "UNIMPLEMENTED": Unsupported,
}

#: gRPC statuses by number, as they stand in messages.
STATUSES: Mapping[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


def told(
    code: str,
    name: str,
    message: str,
    position: Optional[int],
    names: Optional[Mapping[str, type[Error]]] = None,
    about: str = "",
) -> Error:
    """The exception for a status and a name; `names` are those of a face, before those of all."""
    kind = (names or {}).get(name) or NAMES.get(name) or CODES.get(code) or Internal
    return kind(message or code, code=code, name=name, position=position, about=about)


def from_rpc(error: grpc.RpcError, names: Optional[Mapping[str, type[Error]]] = None) -> Error:
    """The exception for a failed call."""
    if not isinstance(error, grpc.Call):
        return told("UNKNOWN", "", str(error), None, names)
    code, details = error.code().name, error.details()
    metadata: dict[str, str] = {}
    for key, value in error.trailing_metadata() or ():
        metadata[key] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    at = metadata.get("esker-position", "")
    position = int(at) if at.isascii() and at.isdigit() else None
    about = metadata.get("esker-name-bin", "")
    return told(code, metadata.get("esker-error", ""), details or "", position, names, about)
