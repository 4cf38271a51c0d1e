"""The committed bundles that tests read, found by what they are, so that no test names a run id."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUBMISSIONS = ROOT / "submissions"
#: Bundles made by earlier versions of llmb, kept whole: each version must go on to verify them.
OLDER = ROOT / "tests" / "older"
#: The bundle of llmb 0.1.0 (rules 2), whose manifest llmb.bundle/1 names no submitter.
OF_0_1_0 = OLDER / "llmb-0.1.0"


def bundles(workload: str = "llama-1.4b", plugin: str = "cpu") -> list[Path]:
    """Return the committed bundles of a training in BF16, sorted by path; none in an sdist."""
    found = SUBMISSIONS.glob(f"*/*/{workload}_train_BF16/*x-{plugin}-*/MANIFEST.json")
    return sorted(path.parent for path in found)


def slower_and_faster() -> tuple[Path, Path]:
    """Return the slowest and the fastest committed run of llama-1.4b by their tokens/s."""

    def rate(bundle: Path) -> float:
        result = json.loads((bundle / "record.json").read_bytes())["result"]
        return float(result["tokens_per_second"])

    slower, *_, faster = sorted(bundles(), key=rate)
    return slower, faster
