"""Where a run of ranks fails, each rank leaves its last collective calls."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from llmb.parallel import flight_recorder

#: A process that parts in two ranks; rank 1 fails after three calls, while rank 0 is in a fourth.
ONE_FAILS = """
import os, sys
from llmb.config import RankAddress
from llmb.errors import RunFailedError
from llmb.parallel.place import free_port
from llmb.parallel.ranks import Ranks

port = free_port()
other = os.fork()
rank = 0 if other else 1
place = RankAddress(
    rank=rank, world_size=2, local_rank=rank, local_world_size=2, host="127.0.0.1", port=port
)
folder = sys.argv[1] if rank == 0 else ""  # the others are told
try:
    with Ranks(place, "gloo", 0, 60.0, lambda reason: None, folder) as ranks:
        for _ in range(3):
            ranks.gather(rank)
        if rank == 1:
            raise RunFailedError("out of luck")
        ranks.gather(rank)
except RunFailedError as error:
    print(f"{rank}: {error}", flush=True)
if rank == 0:
    os.waitpid(other, 0)
"""


def test_each_rank_of_a_run_that_fails_leaves_its_calls_in_rank_0s_folder(tmp_path: Path) -> None:
    folder = tmp_path / "collectives"
    command = [sys.executable, "-c", ONE_FAILS, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert sorted(done.stdout.splitlines()) == ["0: rank 1: out of luck", "1: out of luck"]
    kept = {path.name: pickle.loads(path.read_bytes()) for path in folder.iterdir()}
    assert set(kept) == {"rank_0", "rank_1"}
    calls = {name: len(found["entries"]) for name, found in kept.items()}
    assert calls["rank_0"] > calls["rank_1"] > 0  # rank 0 was in a call that rank 1 never made


def test_a_folder_of_another_hosts_disk_is_not_made(tmp_path: Path) -> None:
    flight_recorder.keep(str(tmp_path / "not here" / "collectives"), 3)
    flight_recorder.keep("", 3)
    assert not [*tmp_path.iterdir()]


def test_the_first_failure_that_a_rank_hears_of_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "collectives"
    folder.mkdir()
    (folder / "rank_3").write_bytes(b"complete")
    flight_recorder.keep(str(folder), 3)
    assert (folder / "rank_3").read_bytes() == b"complete"
