"""The way to a server: addresses, TLS, tokens, deadlines."""

from __future__ import annotations

import pathlib
import socket
import time
from collections.abc import Callable
from typing import Any

import esker
import pytest
import trustme
from esker.log import Logs

Serve = Callable[..., Any]


@pytest.mark.parametrize(
    "address", ["", "localhost", ":7400", "localhost:", "localhost:x", "localhost:0", "localhost:65536", "http://a:1", "grpc+unix:"]
)
def test_addresses_that_make_no_sense_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        esker.connect(address)


def test_a_token_is_not_sent_in_the_clear_to_another_machine() -> None:
    with pytest.raises(ValueError, match="in the clear"):
        esker.connect("log.example.org:7400", token="secret")
    for address in ("localhost:1", "127.0.0.2:1", "[::1]:1", "grpc+unix:/tmp/none", "grpcs://log.example.org:1"):
        esker.connect(address, token="secret").close()
    for token in ("", "a b", "ü"):
        with pytest.raises(ValueError, match="token"):
            esker.connect("localhost:1", token=token)


def test_a_server_that_asks_for_a_token_gets_it(serve: Serve, tmp_path: pathlib.Path) -> None:
    (tmp_path / "token").write_text("open-sesame\n")
    server = serve("--grpc-token-file", str(tmp_path / "token"))
    with esker.connect(server.address, token="open-sesame") as connection:
        log = Logs(connection).create("closed")
        assert list(log.append_many([b"a", b"b"])) == [0, 1]
        assert len(list(log.follow(until_tail=True))) == 2
    for token in (None, "open-sesam"):
        with esker.connect(server.address, token=token) as connection:
            with pytest.raises(esker.errors.Unauthenticated):
                list(Logs(connection).names())
            with pytest.raises(esker.errors.Unauthenticated):
                next(Log(connection).follow())
            with pytest.raises(esker.errors.Unauthenticated):
                list(Log(connection).append_many([b"x"]))


def Log(connection: esker.Connection) -> esker.log.Log:
    """The log, without a look whether it is there."""
    return esker.log.Log(Logs(connection), "closed")


def certificates(folder: pathlib.Path) -> dict[str, str]:
    """An authority, and what a server and a client need."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name in ("server", "client"):
        made = authority.issue_cert("localhost", "127.0.0.1")
        made.private_key_pem.write_to_path(str(folder / f"{name}-key.pem"))
        (folder / f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    return {path.stem: str(path) for path in folder.iterdir()}


def test_an_encrypted_connection_checks_the_server_and_shows_a_certificate(
    serve: Serve, tmp_path: pathlib.Path
) -> None:
    files = certificates(tmp_path)
    server = serve("--tls-cert", files["server"], "--tls-key", files["server-key"])
    assert server.address.startswith("grpcs://")
    known = esker.Tls(authorities=files["ca"])
    for address in (server.address, f"localhost:{server.port}"):
        with esker.connect(address, tls=known) as connection:
            assert list(Logs(connection).names()) == []
    named = esker.Tls(authorities=files["ca"], server_name="localhost")
    with esker.connect(server.address, tls=named) as connection:
        log = Logs(connection).create("encrypted")
        assert list(log.append_many([b"a"])) == [0]
    # Of an authority that is not known, or not encrypted at all.
    for wrong in ({"address": server.address}, {"address": f"127.0.0.1:{server.port}"}):
        with esker.connect(**wrong, timeout=5) as connection, pytest.raises(esker.errors.Unavailable):
            list(Logs(connection).names())
    with pytest.raises(ValueError, match="together"):
        esker.connect(server.address, tls=esker.Tls(certificate=files["client"]))
    with pytest.raises(OSError):
        esker.connect(server.address, tls=esker.Tls(authorities=tmp_path / "none.pem"))


def test_a_server_that_asks_for_a_certificate_gets_it(serve: Serve, tmp_path: pathlib.Path) -> None:
    files = certificates(tmp_path)
    (tmp_path / "esker.toml").write_text(f'[serve]\ntls_client_ca = "{files["ca"]}"\n')
    flags = ("--tls-cert", files["server"], "--tls-key", files["server-key"])
    server = serve(*flags, config=str(tmp_path / "esker.toml"))
    shown = esker.Tls(authorities=files["ca"], certificate=files["client"], key=files["client-key"])
    with esker.connect(server.address, tls=shown) as connection:
        assert Logs(connection).create("known").append(b"a") == 0
    hidden = esker.Tls(authorities=files["ca"])
    with esker.connect(server.address, tls=hidden, timeout=5) as connection, pytest.raises(esker.errors.Unavailable):
        list(Logs(connection).names())


def test_a_unix_socket_is_connected_to(serve: Serve, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "esker.sock"
    serve("--grpc-unix-socket", str(path))
    with esker.connect(f"grpc+unix:{path}") as connection:
        assert Logs(connection).create("near").append(b"a") == 0


def test_a_silent_server_costs_no_more_than_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "127.0.0.1:%d" % listener.getsockname()[1]
        with esker.connect(address, timeout=0.5) as connection:
            began = time.monotonic()
            with pytest.raises((esker.errors.DeadlineExceeded, TimeoutError)):
                list(Logs(connection).names())
            assert 0.3 < time.monotonic() - began < 10
        for timeout in (0, -1.0):
            with pytest.raises(ValueError, match="timeout"):
                esker.connect(address, timeout=timeout)


def test_nobody_there_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with esker.connect(f"127.0.0.1:{port}", timeout=5) as connection:
        with pytest.raises(esker.errors.Unavailable) as told:
            list(Logs(connection).names())
        assert isinstance(told.value, ConnectionError) and told.value.code == "UNAVAILABLE"
