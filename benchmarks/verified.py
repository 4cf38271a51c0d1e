"""How long does `llmb report` take for many bundles, the first time and the second?

python benchmarks/verified.py --bundles 1000
python benchmarks/verified.py --bundles 1000 --folder /tmp/many     keep them for another time
python benchmarks/verified.py --bundles 300 --elsewhere --believe   evidence in a folder of its own

Bundles are made of a committed one: another run id, another drawn seed, one number of each evidence
file another in its last bits, so that no two clash and each passes `llmb verify`. (That this is
possible is what `consistent` means.) 1,000 of them are 11 GB. The second time results come from the
cache; reading and hashing alone is timed beside it. With --believe the first time is left out: for
each bundle a result is put into the cache, as if it had been verified.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from llmb.records.bundle import Take, parse_record, read_bundle
from llmb.records.canonical import pretty_bytes
from llmb.records.run_record import RunRecord
from llmb.submission import elsewhere, layout, page
from llmb.submission.clashes import content_of
from llmb.submission.elsewhere import EvidencePlaces
from llmb.submission.verified import Cache, Verified, _key
from tests.builders import with_manifest

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests/older/llmb-0.1.0"
READERS = 4
#: What is compared of bundles without a nonce (llmb.submission.clashes).
COMPARED = tuple(f"{n}.safetensors" for n in ("/gradients", "/steps", "/honest", "/reference"))


def with_another_number(data: bytes, number: int) -> bytes:
    """Return the safetensors file ``data`` with one number another in its last 16 bits.

    Of the audited steps that of a moment, the last one of which no figure of a finding shows.
    """
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    moments = [one for name, one in header.items() if name.endswith("after/exp_avg")]
    end = begin + moments[0]["data_offsets"][1] if moments else len(data)
    return data[: end - 4] + struct.pack("<H", number % 2**16) + data[end - 2 :]


def copy_of(files: dict[str, bytes], number: int) -> dict[str, bytes]:
    """Return the files of a bundle like ``files`` that shares nothing with any other number."""
    made = dict(files)
    data = json.loads(files["record.json"])
    data["run_id"] = f"{number:032x}"
    made["record.json"] = json.dumps(data, indent=1, ensure_ascii=False).encode() + b"\n"
    record: RunRecord = parse_record(made["record.json"], "record.json")
    made["record.json"] = pretty_bytes(record)
    if layout.PAGE in files:
        made[layout.PAGE] = page.page_bytes(record)
    for name in files:
        if name.endswith("probed.json"):
            probed = json.loads(files[name])
            probed["seed"] = number
            made[name] = json.dumps(probed, indent=1).encode() + b"\n"
        if name.endswith(COMPARED):
            made[name] = with_another_number(files[name], number)
    del made["MANIFEST.json"]
    return with_manifest(made)


def make(folder: Path, count: int, evidence: Path | None) -> None:
    """Write ``count`` bundles below ``folder``, their large evidence into ``evidence`` if given."""
    files = dict(read_bundle(MODEL).files)
    for number in range(count):
        place = folder / f"submitter-{number % 37}" / f"box-{number}" / "work" / f"1x-cpu-{number}"
        made = copy_of(files, number)
        for name, content in (elsewhere.put(evidence, made) if evidence else made).items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)


def believe(places: list[Path], cache: Path, take: Take | None) -> None:
    """Keep for each bundle that it passed, where `llmb report` keeps it."""
    kept = Cache(cache / "llmb" / "verified")
    for place in places:
        bundle = read_bundle(place, take)
        content = content_of(bundle, bundle.record())
        result = Verified(fault=None, signers=frozenset(), content=content)
        kept._store(kept.folder / f"{_key(bundle)}.json", result.model_dump_json().encode())


def report(folder: Path, cache: Path, evidence: Path | None) -> str:
    """Run `llmb report`; return its seconds, its CPU's and the largest memory of any so far."""
    words = ["report", str(folder), "--format", "json", "--output", str(cache / "board.json")]
    words += ["--evidence", str(evidence)] if evidence else []
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-P", "-m", "llmb", *words], check=True, env=environment)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    ranked = json.loads((cache / "board.json").read_text())
    rows = sum(len(group["rows"]) for group in ranked["groups"]) + len(ranked["apart"])
    memory = after.ru_maxrss / 1e3
    return f"{seconds:.1f} s ({cpu:.1f} of a core), {memory:,.0f} MB at most, {rows} shown"


def main() -> None:
    """Make bundles, report them twice, read them once; print a line of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundles", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="make them here, or take what is here")
    parser.add_argument("--elsewhere", action="store_true", help="large evidence in another folder")
    parser.add_argument("--believe", action="store_true", help="leave out the first time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "submissions"
        evidence = Path(f"{folder}-evidence") if options.elsewhere else None
        take = EvidencePlaces([str(evidence)]).take if evidence else None
        if not folder.exists():
            make(folder, options.bundles, evidence)
        places = sorted(path.parent for path in folder.rglob("MANIFEST.json"))
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{len(places)} bundles of {size / 1e6:,.0f} MB", flush=True)
        cache = Path(scratch) / "cache"
        cache.mkdir()
        if options.believe:
            believe(places, cache, take)
        for time_ in ("second", "third") if options.believe else ("first", "second", "third"):
            print(f"    {time_} time: {report(folder, cache, evidence)}", flush=True)
        entries = list((cache / "llmb" / "verified").iterdir())
        kept = sum(path.stat().st_size for path in entries)
        print(f"    cache: {len(entries)} results of {kept / 1e6:.2f} MB")
        begin = time.perf_counter()
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(lambda place: read_bundle(place, take).bundle_id, places))
        print(f"    reading and hashing alone: {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
