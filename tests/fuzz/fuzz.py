"""Coverage-guided fuzzing of the reader of bundles: ``python tests/fuzz/fuzz.py --seconds 600``.

Starts from the bundle of a real, tiny run, made first. Needs atheris (tox run -e fuzz). Inputs that
fail are left in the folder ``--findings``, and ``--again FILE`` tries one of them again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import atheris

# At the end, so that an installed llmb (tox) is fuzzed and not the sources beside this file.
sys.path.append(str(Path(__file__).resolve().parents[2]))

#: What is followed by coverage: llmb's own code that bundles reach, and the directory of a zip.
FOLLOWED = ["llmb.records", "llmb.submission", "llmb.audit", "zipfile"]
with atheris.instrument_imports(include=FOLLOWED, enable_loader_override=False):
    from tests.fuzz import target

TINY = (
    *("--hidden-size=16", "--intermediate-size=16", "--num-hidden-layers=1"),
    *("--num-attention-heads=2", "--sequence-length=8", "--batch-size=1", "--timed-steps=20"),
)
#: Larger files of the honest bundle are not seeds: they would make every input slow.
LONGEST = 512 * 1024


def make_run(folder: Path) -> Path:
    """Return the run directory of a tiny run of this llmb."""
    command = [sys.executable, "-m", "llmb", "run", "--quiet", "--output-dir", str(folder), *TINY]
    subprocess.run(command, check=True, cwd=folder)
    (record,) = folder.glob("*/record.json")
    return record.parent


def main() -> int:
    """Fuzz for as long as asked; the exit code is libFuzzer's, 77 for an input that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--run", type=Path, help="a finished run to start from, not a new one")
    parser.add_argument("--corpus", type=Path, help="a folder to keep interesting inputs in")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--again", type=Path, help="an input to try again, alone")
    asked = parser.parse_args()
    if asked.again and asked.run:
        target.Target(target.honest_files(asked.run)).one(asked.again.read_bytes())
        return 0
    if asked.run and asked.corpus:
        fuzz(asked.run, asked.corpus, asked.findings, asked.seconds)
    # libFuzzer ends its process without a word to Python: what is temporary is this one's.
    with tempfile.TemporaryDirectory(prefix="llmb-fuzz-") as scratch:
        runs = Path(scratch, "runs")
        runs.mkdir()
        flags = {
            "--run": asked.run or make_run(runs),
            "--corpus": asked.corpus or Path(scratch, "corpus"),
            "--findings": asked.findings,
            "--seconds": asked.seconds,
            "--again": asked.again,
        }
        words = [str(word) for pair in flags.items() if pair[1] is not None for word in pair]
        return subprocess.run([sys.executable, __file__, *words], check=False).returncode


def fuzz(run: Path, corpus: Path, findings: Path, seconds: int) -> NoReturn:
    """Fuzz, and end this process."""
    fuzzed = target.Target(target.honest_files(run))
    corpus.mkdir(parents=True, exist_ok=True)
    for name, content in fuzzed.seeds(LONGEST).items():
        (corpus / f"seed-{name}").write_bytes(content)
    findings.mkdir(parents=True, exist_ok=True)
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST}",
        "-timeout=20",
        "-rss_limit_mb=1024",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
        "-len_control=0",
        "-keep_seed=1",  # all of them look alike to coverage: each is the same bundle
    ]
    atheris.Setup(
        [sys.argv[0], *flags, str(corpus)],
        fuzzed.one,
        custom_mutator=lambda data, longest, seed: target.mutate(
            data, longest, seed, atheris.Mutate
        ),
    )
    atheris.Fuzz()
    raise SystemExit


if __name__ == "__main__":
    sys.exit(main())
