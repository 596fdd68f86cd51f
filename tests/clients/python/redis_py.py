"""Does what a list of rows says with redis-py, and tells what each answer was. See ../README.md."""

import json
import re
import sys
import time

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

# redis-py takes the code off an error and makes a class of it.
CODES = {redis.exceptions.NoPermissionError: "NOPERM ", redis.exceptions.ExecAbortError: "EXECABORT "}
STARTS = {"invalid username-password pair": "WRONGPASS ", "Authentication required": "NOAUTH ",
          "HELLO must be called": "NOAUTH "}


def text(answer):
    """An answer as all clients here show it."""
    if answer is None:
        return "nil"
    if isinstance(answer, Exception):
        return error_text(answer)
    if isinstance(answer, dict):
        answer = [part for pair in answer.items() for part in pair]
    if isinstance(answer, list):
        return f"[{', '.join(map(text, answer))}]"
    return str(answer)


def error_text(error):
    shown = re.sub(r"^Command # \d+ .* of pipeline caused error: ", "", str(error))
    code = next((code for kind, code in CODES.items() if isinstance(error, kind)), "")
    code = code or next((code for start, code in STARTS.items() if shown.startswith(start)), "")
    return shown if shown.startswith(code) and code else code + shown


def client(row):
    if row["cluster"]:
        # As its documentation makes one: a client that lives through the end of a server tries more than once.
        return RedisCluster("127.0.0.1", row["port"], protocol=row["protocol"], decode_responses=True,
                            read_from_replicas=row["replicas"])
    files = {"ssl_ca_certs": row["ca"], "ssl_certfile": row["cert"], "ssl_keyfile": row["key"]} if row["tls"] else {}
    # One try: what is refused is to be seen as such.
    made = redis.Redis("127.0.0.1", row["port"], username=row["user"], password=row["password"], ssl=row["tls"],
                       protocol=row["protocol"], decode_responses=True, socket_timeout=20, retry=Retry(NoBackoff(), 0),
                       single_connection_client=False, **files)
    # Answers as the server gives them, not as redis-py makes something else of them.
    made.response_callbacks.clear()
    return made


def as_told(connection, commands):
    """Lets answers to these commands be those of the server at all nodes that a client of a cluster knows by now."""
    if isinstance(connection, RedisCluster):
        for node in connection.get_nodes():
            for command in commands:
                connection.get_redis_connection(node).response_callbacks.pop(command[0], None)


def call(connection, command):
    as_told(connection, [command])
    try:
        return text(connection.execute_command(*command))
    except (redis.exceptions.ResponseError, redis.exceptions.AuthenticationError) as error:
        return error_text(error)


def writes(connection, prefix, seconds):
    """Writes for so long and reads back what was acknowledged; see the README for the answers."""
    began = acknowledged = time.monotonic()
    kept, failures, pause, failed, number = [], [], 0, "", 0
    while time.monotonic() < began + float(seconds):
        try:
            connection.set(f"{prefix}:{number}", number)
            kept.append(number)
            pause, acknowledged = max(pause, time.monotonic() - acknowledged), time.monotonic()
        except (redis.exceptions.RedisError, OSError) as error:
            failures.append(time.monotonic())
            failed = f"{type(error).__name__}: {error}"
            time.sleep(0.02)
        number += 1
    missing = sum(connection.get(f"{prefix}:{number}") != str(number) for number in kept)
    span = failures[-1] - failures[0] if failures else 0
    return [str(len(kept)), str(len(failures)), str(round(span * 1000)), str(round(pause * 1000)), str(missing), failed]


def many(connection, commands, transaction):
    as_told(connection, commands)
    with connection.pipeline(transaction=transaction) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        try:
            return [text(answer) for answer in pipeline.execute(raise_on_error=False)]
        except redis.exceptions.ResponseError as error:
            return [error_text(error)]


def answers(row):
    try:
        with client(row) as connection:
            told = []
            for how, commands in row["steps"]:
                if how == "call":
                    told += [call(connection, command) for command in commands]
                elif how == "scan":
                    told += sorted(connection.scan_iter(match=commands[0][0]))
                elif how == "writes":
                    told += writes(connection, *commands[0])
                else:
                    told += many(connection, commands, how == "transaction")
            return told
    except redis.exceptions.AuthenticationError as error:
        return [error_text(error)]
    except (redis.exceptions.ConnectionError, redis.exceptions.InvalidResponse, OSError):
        return ["no connection"]
    except redis.exceptions.RedisError as error:
        return [error_text(error)]


json.dump([answers(row) for row in json.load(sys.stdin)], sys.stdout)
