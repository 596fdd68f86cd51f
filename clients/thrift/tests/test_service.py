"""Every method of the published services, by the generated client of Apache Thrift, in every protocol."""

from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path

import pytest
import trustme
from conftest import PROTOCOLS, TRANSPORTS, Server
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport import TSocket, TSSLSocket, TTransport
from zdb import EskerKeys, ZDBService
from zdb.ttypes import DataType, Mode

MESSAGE_BYTES_MAX = 44 << 20

every_shape = pytest.mark.parametrize(
    ("transport", "protocol"), [(transport, protocol) for transport in TRANSPORTS for protocol in PROTOCOLS]
)


def pairs(found: list[DataType]) -> dict[str, str]:
    return {pair.key: pair.value for pair in found}


def refused(kind: int, text: str):
    """A TApplicationException of this kind, whose message holds this."""
    return pytest.raises(TApplicationException, check=lambda error: error.type == kind and text in error.message)


@every_shape
def test_every_method_of_the_papers_service(server: Server, transport: str, protocol: str):
    with server.client(transport, protocol) as client:
        key = f"{transport} {protocol} ".encode().hex() + "ключ"
        assert not client.has(key)
        with pytest.raises(TApplicationException) as missing:
            client.get(key)
        assert missing.value.type == TApplicationException.MISSING_RESULT
        assert client.put(key, "значение") == 0
        assert (client.get(key), client.has(key)) == ("значение", True)
        assert client.put(key, "") == 0
        assert client.get(key) == ""
        client.multiPut([DataType(f"{key}{n}", f"value {n}") for n in range(20)])
        asked = [f"{key}{n}" for n in (19, 99, 0, 3)]
        found = client.multiGet(asked)
        assert [(pair.key, pair.value) for pair in found] == [
            (f"{key}19", "value 19"),
            (f"{key}0", "value 0"),
            (f"{key}3", "value 3"),
        ]
        assert (client.multiGet([]), client.multiPut([])) == ([], None)
        assert (client.remove(key), client.remove(key)) == (0, 1)
        assert not client.has(key)


@every_shape
def test_every_method_of_the_service_that_extends_it(start, transport: str, protocol: str):
    server = start()
    with server.client(transport, protocol) as client:
        assert (client.add("k", "1"), client.add("k", "2"), client.get("k")) == (True, False, "1")
        assert (client.update("k", "3"), client.update("none", "3"), client.get("k")) == (True, False, "3")
        assert (client.compareAndSet("k", "1", "4"), client.compareAndSet("k", "3", "4")) == (False, True)
        assert (client.compareAndSet("k", None, "5"), client.compareAndSet("new", None, "5")) == (False, True)
        assert pairs(client.multiGet(["k", "new", "none"])) == {"k": "4", "new": "5"}
        assert (client.count(), client.removeMany(["k", "k", "new", "none"]), client.count()) == (2, 2, 0)
        # Written in this order; and the first once more at the end.
        written = [f"{n * 7919 % 2500:04}" for n in range(2500)]
        for at in range(0, 2500, 500):
            part = written[at : at + 500]
            client.multiPut([DataType(key, "v" + key) for key in [*part, part[1]]])
        client.put(written[0], "again")
        assert client.count() == 2500

        def pages(method, limit: int) -> list[str]:
            found, cursor, lens = [], b"", []
            while True:
                page = method(cursor, limit)
                lens.append(len(page.data))
                found += [pair.key for pair in page.data]
                if page.cursor is None:
                    assert max(lens) <= (limit or 100)
                    return found
                cursor = page.cursor

        assert pages(client.iterate, 1000) == pages(client.iterate, 0) == sorted(written)
        assert pages(client.iterateInserted, 1000) == written[1:] + written[:1]
        with refused(TApplicationException.UNKNOWN, "PAGE_MAX = 1000"):
            client.iterate(b"", 1001)
        with refused(TApplicationException.UNKNOWN, "cursor"):
            client.iterate(b"nonsense", 10)
        assert client.mode() == Mode.SAFE
        client.setMode(Mode.ASYNCHRONOUS)
        assert (client.mode(), client.put("k", "v"), client.get("k")) == (Mode.ASYNCHRONOUS, 0, "v")
        client.setMode(Mode.SAFE)
        assert client.mode() == Mode.SAFE
    assert server.end() == 0


@every_shape
def test_int_keys_are_decimal_and_another_is_named(start, transport: str, protocol: str):
    server = start("--thrift-namespace", "users:int")
    with server.client(transport, protocol) as client:
        numbers = [0, 1, 9, 10, 65_535, 65_536, 2**63, 2**64 - 1]
        client.multiPut([DataType(str(number), f"v{number}") for number in reversed(numbers)])
        for key in ("ada", "", "-1", "07", str(2**64)):
            with refused(TApplicationException.UNKNOWN, f'"{key}"'):
                client.get(key)
        assert client.get("10") == "v10"
        assert pairs(client.multiGet([str(number) for number in numbers])) == {str(n): f"v{n}" for n in numbers}
        # In the order of numbers, and in that of writing.
        first = client.iterate(b"", 5)
        rest = client.iterate(first.cursor, 5)
        assert [int(pair.key) for pair in first.data + rest.data] == numbers
        assert rest.cursor is None
        assert client.count() == len(numbers) == client.removeMany([str(number) for number in numbers])
    assert server.end() == 0


@every_shape
def test_what_is_too_large_is_refused_by_its_limit(server: Server, transport: str, protocol: str):
    with server.client(transport, protocol) as client:
        largest = "v" * ((16 << 20) - 16)
        assert client.put("large", largest) == 0
        assert client.get("large") == largest
        with refused(TApplicationException.UNKNOWN, "ANSWER_BYTES_MAX"):
            client.multiGet(["large"] * 5)
        with refused(TApplicationException.UNKNOWN, "VALUE_BYTES_MAX"):
            client.put("large", largest + "v")
        with refused(TApplicationException.UNKNOWN, "KEY_BYTES_MAX"):
            client.get("k" * 5_000)
        with refused(TApplicationException.UNKNOWN, "BATCH_MAX"):
            client.multiGet(["k"] * 4_097)
        assert client.remove("large") == 0
        # No more of the connection can be read after this.
        with refused(TApplicationException.PROTOCOL_ERROR, "MESSAGE_BYTES_MAX"):
            client.put("large", "v" * (MESSAGE_BYTES_MAX + 1))
        with pytest.raises((TTransport.TTransportException, OSError)):
            client.has("large")
    with server.client(transport, protocol) as client:
        assert not client.has("large")


def test_a_method_that_there_is_not_is_told_and_the_connection_goes_on(server: Server):
    with server.client("framed", "compact") as client:
        protocol = client._oprot
        protocol.writeMessageBegin("increment", TMessageType.CALL, 5)
        EskerKeys.count_args().write(protocol)
        protocol.writeMessageEnd()
        protocol.trans.flush()
        name, kind, number = client._iprot.readMessageBegin()
        assert (name, kind, number) == ("increment", TMessageType.EXCEPTION, 5)
        error = TApplicationException()
        error.read(client._iprot)
        client._iprot.readMessageEnd()
        assert error.type == TApplicationException.UNKNOWN_METHOD and '"increment"' in error.message
        # One that is not to be answered is done, and not answered.
        protocol.writeMessageBegin("put", TMessageType.ONEWAY, 6)
        ZDBService.put_args("oneway", "done").write(protocol)
        protocol.writeMessageEnd()
        protocol.trans.flush()
        assert client.get("oneway") == "done"


def test_bytes_of_no_protocol_close_the_connection(server: Server):
    for sent in (b"GET / HTTP/1.1\r\n\r\n", b"*1\r\n$4\r\nPING\r\n", bytes([0x80, 2, 0, 1, 0, 0, 0, 0]), b"\x7f" * 64):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(sent)
            while connection.recv(4096):
                pass


def at_once(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_many_clients_write_at_once_and_read_what_each_wrote(start):
    server, failed = start(), []

    def work(number: int):
        try:
            transport, protocol = list(TRANSPORTS)[number % 2], list(PROTOCOLS)[number % len(PROTOCOLS)]
            with server.client(transport, protocol) as client:
                for n in range(100):
                    key = f"{number}/{n}"
                    assert client.put(key, key) == 0 and client.get(key) == key
        except BaseException as error:
            failed.append(error)

    at_once([threading.Thread(target=work, args=(number,)) for number in range(16)])
    assert not failed
    with server.client() as client:
        assert client.count() == 1_600
        # All add to one counter: no update is lost.
        assert client.put("counter", "0") == 0

    def count():
        try:
            with server.client() as client:
                for _ in range(25):
                    while not client.compareAndSet("counter", seen := client.get("counter"), str(int(seen) + 1)):
                        pass
        except BaseException as error:
            failed.append(error)

    at_once([threading.Thread(target=count) for _ in range(8)])
    assert not failed
    with server.client() as client:
        assert client.get("counter") == "200"


def test_a_file_that_is_taken_anew_changes_the_mode_where_it_says_another(start, tmp_path: Path):
    def settings(mode: str, more: str = "") -> None:
        (tmp_path / "esker.toml").write_text(f"[serve]\nthrift_mode = '{mode}'\n{more}")

    def reload() -> None:
        server.process.send_signal(signal.SIGHUP)

    settings("safe")
    server = start("--config", "esker.toml")
    with server.client() as client:
        settings("asynchronous")
        reload()
        until = time.monotonic() + 20
        while client.mode() != Mode.ASYNCHRONOUS:
            assert time.monotonic() < until
            time.sleep(0.01)
        # What an operator has set stays while the file says what it said.
        client.setMode(Mode.SAFE)
        reload()
        # And what cannot be read changes nothing.
        settings("asynchronous", "thrift_mood = 'good'")
        reload()
        time.sleep(0.3)
        assert (client.mode(), client.put("k", "v")) == (Mode.SAFE, 0)


def test_what_was_acknowledged_in_safe_mode_is_there_after_a_kill(start):
    for turn in range(3):
        server = start()
        with server.client() as client:
            for n in range(turn * 50):
                assert client.get(f"k{n}") == f"v{n}"
            for n in range(turn * 50, turn * 50 + 50):
                client.put(f"k{n}", f"v{n}")
            server.end(signal.SIGKILL)


def test_the_mode_at_the_start_is_that_of_the_settings(start):
    server = start("--thrift-mode", "asynchronous", "--thrift-namespace", "cache:bytes")
    with server.client() as client:
        assert client.mode() == Mode.ASYNCHRONOUS
        client.put("k", "v")
    # A server that is told to stop loses nothing.
    assert server.end() == 0
    with start("--thrift-namespace", "cache").client() as client:
        assert (client.mode(), client.get("k")) == (Mode.SAFE, "v")


def test_a_namespace_keeps_its_kind(start):
    start("--thrift-namespace", "n:int").end()
    with pytest.raises(AssertionError):
        start("--thrift-namespace", "n:bytes")


def test_a_unix_socket_is_served(start, tmp_path: Path):
    path = tmp_path / "thrift.sock"
    server = start("--thrift-unix-socket", str(path))
    with server.client(socket=TSocket.TSocket(unix_socket=str(path))) as client:
        assert (client.put("k", "v"), client.get("k")) == (0, "v")
    assert server.end() == 0 and not path.exists()


def test_clients_are_known_by_their_certificates_and_do_what_their_users_may(start, tmp_path: Path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("127.0.0.1", "ops.example", "app.example", "look.example", "other.example"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    (tmp_path / "users.toml").write_text(
        '[[user]]\nname = "ops"\nrole = "operator"\ncertificates = ["ops.example"]\n'
        '[[user]]\nname = "app"\nrole = "writer"\ncertificates = ["app.example"]\nkeys = ["app:*"]\nnames = ["shop"]\n'
        '[[user]]\nname = "look"\nrole = "reader"\ncertificates = ["look.example"]\n'
        '[[user]]\nname = "other"\nrole = "writer"\ncertificates = ["other.example"]\nfaces = ["log"]\n'
    )
    (tmp_path / "esker.toml").write_text(
        '[serve]\nusers_file = "users.toml"\ntls_cert = "127.0.0.1.pem"\ntls_key = "127.0.0.1.pem"\n'
        'tls_client_ca = "ca.pem"\nthrift_namespace = "shop"\n'
    )
    server = start("--config", "esker.toml")

    def as_user(name: str):
        files = {"certfile": str(tmp_path / f"{name}.pem"), "keyfile": str(tmp_path / f"{name}.pem")}
        socket = TSSLSocket.TSSLSocket("127.0.0.1", server.port, ca_certs=str(tmp_path / "ca.pem"), **files)
        return server.client("framed", "binary", socket)

    with as_user("app.example") as client:
        assert (client.put("app:1", "v"), client.get("app:1")) == (0, "v")
        for denied in (
            lambda: client.get("other"),
            lambda: client.multiPut([DataType("app:2", "v"), DataType("other", "v")]),
            lambda: client.iterate(b"", 10),
            lambda: client.setMode(Mode.ASYNCHRONOUS),
        ):
            with refused(TApplicationException.UNKNOWN, "user app may not"):
                denied()
    with as_user("look.example") as client:
        assert (client.get("app:1"), client.count(), len(client.iterate(b"", 10).data)) == ("v", 1, 1)
        with refused(TApplicationException.UNKNOWN, "user look may not"):
            client.remove("app:1")
    with as_user("ops.example") as client:
        client.setMode(Mode.ASYNCHRONOUS)
        assert (client.mode(), client.remove("app:1")) == (Mode.ASYNCHRONOUS, 0)
    with as_user("other.example") as client, refused(TApplicationException.UNKNOWN, "user other may not"):
        client.get("app:1")
    # Without a certificate there is no connection, and without TLS none either.
    with pytest.raises((TTransport.TTransportException, OSError)):
        stranger = TSSLSocket.TSSLSocket("127.0.0.1", server.port, ca_certs=str(tmp_path / "ca.pem"))
        with server.client("framed", "binary", stranger) as client:
            client.get("app:1")
    with pytest.raises((TTransport.TTransportException, OSError)), server.client() as client:
        client.get("app:1")
    assert server.end() == 0
