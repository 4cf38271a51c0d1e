"""Kill two writers of one history again and again; print what they said, and what is there.

    python -m tests.unit.history.killed_writers FILE ROUNDS

A writer is a fork that adds lines, in pieces of 100 bytes, and acknowledges each line on a pipe. A
round ends with SIGKILL after one to three lines and up to 10 ms, wherever the writers are.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from llmb.history import file
from tests.unit.builders_history import line

#: Bytes of an acknowledgement: the number of the line.
SIZE = 8


def write(path: Path, first: int, pipe: int) -> None:
    whole = os.write

    def pieces(descriptor, data):
        time.sleep(0.0005)
        return whole(descriptor, bytes(data)[:100])

    file.os.write = pieces
    for number in range(first, first + 1000):
        file.append(path, [line(number % 600, run_id=f"{number:032x}")])
        whole(pipe, f"{number:0{SIZE}d}".encode())


def main(path: Path, rounds: int) -> None:
    draw, (read, pipe), torn = random.Random(28), os.pipe(), 0
    said = b""
    for number in range(rounds):
        writers = []
        for each in range(2):
            pid = os.fork()
            if pid == 0:
                try:
                    write(path, (2 * number + each) * 1000, pipe)
                finally:
                    os._exit(1)
            writers.append(pid)
        for _ in range(draw.randint(1, 3)):
            said += os.read(read, SIZE)
        time.sleep(draw.uniform(0, 0.01))
        for pid in writers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        torn += not path.read_bytes().endswith(b"\n")
    os.close(pipe)
    said += b"".join(iter(lambda: os.read(read, SIZE), b""))
    acknowledged = [said[at : at + SIZE].decode() for at in range(0, len(said), SIZE)]
    before = file.read(path)
    file.append(path, [line(0, run_id="f" * 32)])
    after = file.read(path)
    found = {
        "acknowledged": [f"{int(each):032x}" for each in acknowledged],
        "torn": torn,
        "before": [dict(before.skipped), [each.run_id for each in before.lines]],
        "after": [dict(after.skipped), [each.run_id for each in after.lines]],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
