"""Does with redis-cli what takes a process for each command. See README.md."""

import subprocess
import time

CALL_SECONDS_MAX = 60


def run(command, given=None):
    return subprocess.run(command, input=given or "", text=True, capture_output=True, check=False,
                          timeout=CALL_SECONDS_MAX)


def writes_of_cli(command, prefix, seconds):
    """Writes of redis-cli: a process for each, which begins at the address that it was given."""
    began = acknowledged = time.monotonic()
    kept, failures, pause, failed = [], [], 0, ""
    number = 0
    while time.monotonic() < began + float(seconds):
        told = run([*command, "SET", f"{prefix}:{number}", str(number)])
        now = time.monotonic()
        # Behind where it was sent, if it was.
        if told.stdout.split("\n")[-2:] == ["OK", ""]:
            kept.append(number)
            pause, acknowledged = max(pause, now - acknowledged), now
        else:
            failures.append(now)
            failed = (told.stderr + told.stdout).strip().replace("\n", " ")
            time.sleep(0.02)
        number += 1
    found = run([*command, "--raw"], given="".join(f"GET {prefix}:{number}\n" for number in kept)).stdout
    there = [line for line in found.split("\n") if not line.startswith("-> ")]
    missing = sum(line != str(number) for line, number in zip(there, kept, strict=False)) + max(
        0, len(kept) + 1 - len(there))
    span = failures[-1] - failures[0] if failures else 0
    return [str(len(kept)), str(len(failures)), str(round(span * 1000)), str(round(pause * 1000)), str(missing), failed]
