"""Every attack on the reader at once, in a process that may take little memory and little time."""

from __future__ import annotations

import json
import os
import resource
import zipfile
from pathlib import Path

import pytest

from llmb.submission.manifest import zip_bytes
from tests import attacks, builders, patience
from tests.builders import with_manifest
from tests.e2e import harness

#: What `llmb verify` needs at most: an archive at its limit, its members, and itself.
MOST_MEMORY = 1280 * 2**20
#: Seconds of processor time for the whole table: a bound on hangs, not a measurement.
MOST_CPU_S = 300

MIB = 2**20


def limited() -> None:
    """Limit the child's address space and time, and the largest file it may write to nothing."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def verify(*paths: Path, cwd: Path) -> tuple[int, list[dict], str]:
    """Return exit code, results and stderr of ``llmb verify`` under the limits."""
    done = patience.run(
        harness.llmb_command("verify", "--json", *paths),
        env=harness.environment(),
        cwd=cwd,
        preexec_fn=limited,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def tree(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def honest() -> dict[str, bytes]:
    return attacks.honest_run()


def test_the_whole_table_is_refused_by_one_process_within_its_limits(
    honest: dict[str, bytes], tmp_path: Path
) -> None:
    paths = []
    for number, attack in enumerate(attacks.ATTACKS.values()):
        if attack.code == 6:
            (tmp_path / str(number)).mkdir()
            paths.append(attack.make(tmp_path / str(number), honest))
    before = tree(tmp_path)
    code, results, stderr = verify(*paths, cwd=tmp_path)
    assert code == 6, stderr
    assert [result["bundle"] for result in results if result["ok"]] == []
    assert len(results) == len(paths) > 150
    assert len(stderr.splitlines()) == 1
    assert "Traceback" not in stderr
    assert tree(tmp_path) == before


def whole(folder: Path, honest: dict[str, bytes]) -> Path:
    """Return a zip of stored members that is as large as one may be."""
    path = folder / "whole.zip"
    path.write_bytes(zip_bytes(with_manifest({f"{n}.bin": bytes(63 * MIB) for n in range(4)})))
    return path


def squeezed(folder: Path, honest: dict[str, bytes]) -> Path:
    """Return a small zip that unpacks to as much as one may, at nearly the highest ratio."""
    content = os.urandom(360 * 1024) + bytes(63 * MIB - 360 * 1024)
    files = with_manifest({f"{n}.bin": content for n in range(4)})
    path = folder / "squeezed.zip"
    path.write_bytes(attacks.zip_of([*files.items()], zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 2 * MIB
    return path


def spread(folder: Path, honest: dict[str, bytes]) -> Path:
    """Return a folder of files that take no disk and as much memory as may be."""
    bundle = builders.write(folder / "spread", with_manifest(honest))
    for number in range(3):
        (bundle / f"{number}.bin").touch()
        os.truncate(bundle / f"{number}.bin", 64 * MIB)
    return bundle


def many_faults(folder: Path, honest: dict[str, bytes]) -> Path:
    """Return a bundle whose record is wrong in as many places as it may have."""
    data = json.loads(honest["record.json"])
    data["timing"]["step_ns"] = ["x"] * 240_000
    record = json.dumps(data).encode()
    return builders.write(folder / "faults", with_manifest({**honest, "record.json": record}))


def many_objects(folder: Path, honest: dict[str, bytes]) -> Path:
    """Return a bundle whose record is nothing but small objects."""
    record = b'[{"a":0}' + b',{"a":0}' * 124_000 + b"]"
    return builders.write(folder / "objects", with_manifest({**honest, "record.json": record}))


def evidence_of_faults(folder: Path, honest: dict[str, bytes]) -> Path:
    """Return a bundle with evidence that is wrong in as many places."""
    name = "evidence/repeat-0/namespace.json"
    content = json.dumps({"replaced": [{}] * 124_000}).encode()
    return builders.write(folder / "evidence", with_manifest({**honest, name: content}))


@pytest.mark.parametrize(
    "make", [whole, squeezed, spread, many_faults, many_objects, evidence_of_faults]
)
def test_what_is_as_large_as_the_limits_allow_is_refused_in_bounded_memory(
    make, honest: dict[str, bytes], tmp_path: Path
) -> None:
    path = make(tmp_path, honest)
    code, (result,), stderr = verify(path, cwd=tmp_path)
    assert (code, result["ok"]) == (6, False), stderr
    assert "memory" not in stderr.lower()
    assert len(stderr) < 6000
