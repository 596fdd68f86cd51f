"""The way to a server: address, TLS, token, deadlines. Knows nothing of what is asked over it.

    with esker.connect("127.0.0.1:7400") as connection:
        logs = esker.log.Logs(connection)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar, Union

import grpc

from . import errors

__all__ = ["MESSAGE_BYTES_MAX", "Connection", "Tls", "connect"]

#: Longest message of the server, in bytes; longer ones are not received.
MESSAGE_BYTES_MAX = 40 << 20

#: Seconds that a call may take if nothing else is said.
TIMEOUT_DEFAULT = 10.0

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Tls:
    """What is needed for an encrypted connection.

    Attributes:
        authorities: File with the certificates (PEM) that the server's is checked by; left out: those of gRPC.
        certificate: File with this client's certificate chain (PEM), where the server asks for one; with `key`.
        key: File with this client's private key (PEM).
        server_name: What the server's certificate is for, if that is not the host that is connected to.
    """

    authorities: Union[str, Path, None] = None
    certificate: Union[str, Path, None] = None
    key: Union[str, Path, None] = None
    server_name: Optional[str] = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files.

        Raises:
            OSError: A file cannot be read.
            ValueError: One of `certificate` and `key` is given without the other.
        """
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate and its key are given together")
        authorities, key, certificate = map(_contents, (self.authorities, self.key, self.certificate))
        return grpc.ssl_channel_credentials(authorities, key, certificate)


class Connection:
    """A connection to a server, used by any number of threads at once.

    It connects when it is first used, and again by itself after it broke; a call that was under way then fails. Make it after forking, not before.
    Use it in a `with` statement, or call `close`.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: Optional[Tls] = None,
        token: Optional[str] = None,
        timeout: Optional[float] = TIMEOUT_DEFAULT,
    ) -> None:
        """See `connect`."""
        target, encrypted, near = _target(address)
        if encrypted and tls is None:
            tls = Tls()
        if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
            raise ValueError("the token is empty, or holds something else than visible ASCII")
        if token is not None and tls is None and not near:
            raise ValueError(f"a token is not sent to {address} in the clear: use TLS, a loopback address or a unix socket")
        _seconds("timeout", timeout)
        self.address = address
        self.timeout = timeout
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ]
        if target.startswith("unix:"):
            # gRPC would name the path, escaped, which the server's HTTP/2 does not take for a host.
            options.append(("grpc.default_authority", "localhost"))
        if tls is None:
            self.channel = grpc.insecure_channel(target, options)
        else:
            if tls.server_name is not None:
                options.append(("grpc.ssl_target_name_override", tls.server_name))
            self.channel = grpc.secure_channel(target, tls.credentials(), options)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; calls that are under way are given up."""
        self.channel.close()

    def call(
        self,
        method: Callable[..., Answer],
        request: Any,
        *,
        timeout: Optional[float],
        names: Mapping[str, type[errors.Error]],
    ) -> Answer:
        """Makes a call with one answer.

        Args:
            method: Of a stub over `channel`.
            timeout: Seconds until it is given up; left out: those of the connection.
            names: Errors of the face.

        Raises:
            errors.Error: As the server told it, or the transport.
        """
        _seconds("timeout", timeout)
        try:
            return method(request, timeout=self.timeout if timeout is None else timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise errors.from_rpc(error, names) from error

    def stream(self, method: Callable[..., Any], request: Any, *, timeout: Optional[float]) -> Any:
        """Begins a call with many answers, and returns it: an iterator that can be cancelled. It ends after `timeout` seconds if that is given.

        What iterating raises is a `grpc.RpcError`: see `errors.from_rpc`.
        """
        _seconds("timeout", timeout)
        return method(request, timeout=timeout, metadata=self._metadata)


def connect(
    address: str,
    *,
    tls: Optional[Tls] = None,
    token: Optional[str] = None,
    timeout: Optional[float] = TIMEOUT_DEFAULT,
) -> Connection:
    """A connection to the server at `address`.

    Args:
        address: `HOST:PORT` or `grpc://HOST:PORT`; with TLS `grpcs://HOST:PORT`, or any of them with `tls`; `grpc+unix:PATH`.
        tls: Certificates. `grpcs://` without them trusts what gRPC trusts.
        token: What the server asks for, if it does. Sent in the clear to this machine only.
        timeout: Seconds that a call may take, if it does not say so itself; `None`: for ever. Followers and appenders have no limit.

    Raises:
        ValueError: The address makes no sense, or the token would be sent in the clear.
        OSError: A file of `tls` cannot be read.
    """
    return Connection(address, tls=tls, token=token, timeout=timeout)


def replies(call: Any, names: Mapping[str, type[errors.Error]]) -> Iterator[Any]:
    """Answers of a stream, its failure told as one of `errors`."""
    try:
        yield from call
    except grpc.RpcError as error:
        raise errors.from_rpc(error, names) from error


def _target(address: str) -> tuple[str, bool, bool]:
    """What gRPC calls the address, whether it is to be encrypted, and whether it is on this machine."""
    if address.startswith("grpc+unix:"):
        path = address[len("grpc+unix:") :]
        if not path:
            raise ValueError(f"address {address!r}: expected grpc+unix:PATH")
        return f"unix:{path}", False, True
    encrypted = address.startswith("grpcs://")
    rest = address.removeprefix("grpcs://").removeprefix("grpc://")
    host, colon, port = rest.rpartition(":")
    if not colon or not host or "/" in rest or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"address {address!r}: expected HOST:PORT, grpc://HOST:PORT, grpcs://HOST:PORT or grpc+unix:PATH")
    return rest, encrypted, _is_loopback(host)


def _contents(file: Union[str, Path, None]) -> Optional[bytes]:
    return None if file is None else Path(file).read_bytes()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _seconds(what: str, seconds: Optional[float]) -> None:
    if seconds is not None and not seconds > 0:
        raise ValueError(f"{what} = {seconds}: expected more than 0 seconds")
