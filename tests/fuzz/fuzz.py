"""Coverage-guided fuzzing of the reader of bundles: ``python tests/fuzz/fuzz.py --seconds 600``.

Starts from the bundle of a real, tiny run, made first. Needs atheris (tox run -e fuzz). Inputs that
fail are left in the folder ``--findings``, and ``--again FILE`` tries one of them again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
LONGEST = 64 * 1024


def make_run(folder: Path) -> Path:
    """Return the run directory of a tiny run of this llmb."""
    command = [sys.executable, "-m", "llmb", "run", "--quiet", "--output-dir", str(folder), *TINY]
    subprocess.run(command, check=True, cwd=folder)
    (found,) = folder.iterdir()
    return found


def main() -> None:
    """Fuzz for as long as asked; the exit code is libFuzzer's, 77 for an input that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument(
        "--run", type=Path, help="a run directory to start from, in place of a new one"
    )
    parser.add_argument("--corpus", type=Path, help="a folder to keep interesting inputs in")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--again", type=Path, help="an input to try again, alone")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmb-fuzz-") as scratch:
        runs = Path(scratch, "runs")
        runs.mkdir()
        fuzzed = target.Target(target.honest_files(asked.run or make_run(runs)))
        if asked.again:
            fuzzed.one(asked.again.read_bytes())
            return
        corpus = asked.corpus or Path(scratch, "corpus")
        corpus.mkdir(parents=True, exist_ok=True)
        for name, content in fuzzed.seeds(LONGEST).items():
            (corpus / f"seed-{name}").write_bytes(content)
        asked.findings.mkdir(parents=True, exist_ok=True)
        flags = [
            f"-max_total_time={asked.seconds}",
            f"-max_len={LONGEST}",
            "-timeout=20",
            "-rss_limit_mb=1024",
            f"-artifact_prefix={asked.findings}/",
            "-print_final_stats=1",
            "-len_control=0",
        ]
        atheris.Setup(
            [sys.argv[0], *flags, str(corpus)],
            fuzzed.one,
            custom_mutator=lambda data, longest, seed: target.mutate(
                data, longest, seed, atheris.Mutate
            ),
        )
        try:
            atheris.Fuzz()
        finally:
            if not any(asked.findings.iterdir()):
                shutil.rmtree(asked.findings)


if __name__ == "__main__":
    main()
