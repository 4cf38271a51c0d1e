"""Writes docs/how-to-lie.md, every forgery and what happens: `python -m tests.cheats.lies_page`."""

# ruff: noqa: E501 - lines of a page

from __future__ import annotations

from pathlib import Path

from tests.cheats.forgeries import FORGERIES
from tests.unit.submission.test_tree import TRICKS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to-lie.md"

_HEAD = """\
# How to lie to llmb, and what happens

Each line is a lie that was tried on a fresh honest run, and is a test. For a new lie open an issue, or better a pull request
with a forger beside `tests/cheats/forgeries.py`. A second list has plugins that cheat while they run:
[tests/cheats/README.md](../tests/cheats/README.md). `python -m tests.cheats.lies_page` writes this page.

## Levels of trust

A leaderboard shows the level of trust of each row, the highest level first. Each level excludes more lies:

| level | condition | a liar must at least |
|---|---|---|
| self-reported | the bundle passes `llmb verify` | write every file of a bundle so that all fit together: a program of a few hundred lines, without a run |
| recomputed | a maintainer has run `llmb verify --recompute --list-in submissions BUNDLE`, which lists the bundle in `submissions/recomputed.json` if a step was made again | compute the steps of this seed and nonce, as slowly as the liar likes: with `--recompute` the first three steps, with `--recompute full` all steps. The row says how many |
| time-stamped | all steps were recomputed (`--recompute full`), and two tokens of an authority in `submissions/authorities.pem` leave at least 90 % of the figure ([time-stamps.md](time-stamps.md)) | compute the steps as fast as the row claims, for example on a faster machine than described; or claim 11 % more than the authority's clock allows |
| repeated | a signed run of a second organisation with the same configuration is within 5 % on hardware of the same class | have a partner who lies, too, or be listed as two organisations: a maintainer lists organisations |

Time is the weak point of the first two levels: stamps come from the host's own clock. Joules, peak memory and the ceiling come from the host's own counters, and the peak of the MFU from the plugin: no level
bounds them, because a repetition, too, compares tokens/s alone. Every page marks unverifiable fields of a record as *declared*.
"""

_ONE = """
## In a bundle

"refused: `audit`" names the check of `llmb verify` that refuses the bundle. Example: `llmb verify` of the lie `faster` ends with exit code 6.

| lie | change | result |
|-|-|-|
"""

_TREE = """
## In a pull request

`llmb verify --tree submissions --base COMMIT` refuses each change, with a line (`tests/unit/submission/test_tree.py`).

| change | the line contains |
|-|-|
"""

_LEVELS = """
## At each level of trust

The cheapest lies found, with a forger who knows the source. Tried with the committed bundle of llama-45m in BF16, on two cores.

| lie | cost | self-reported | recomputed | time-stamped |
|-|-|-|-|-|
| All stamps are divided by k. | 10 lines, 1 s | not noticed | not noticed | refused: the tokens bound the time |
| Eight times the batch, or eight ranks, are claimed. | 20 lines, 1 s | not noticed | refused after 59 s | refused |
| Steps from the fourth on are invented. | 25 lines, 1 s, and three honest steps | not noticed | not noticed with `--recompute` (27 s), refused with `--recompute full` (60 s) | refused: needs `full` |
| A copy of a run with changed numbers | 30 lines, 1 s | not noticed | refused | refused |
| nemo-bert-base is called nemo-bert-base-2048: equal parameters, four times the tokens. | 20 lines, 1 s | refused: positions that no sequence has have no gradient. With invented gradients not noticed | not noticed, never listed: dropout leaves no step to make again | never reached |
| A run with dropout (nemo-bert-base) claims eight times the batch. | 20 lines, 1 s | not noticed | not noticed, never listed | never reached |
| Joules, peak memory, MFU or *Of ceiling* | 10 lines, 1 s | not noticed | not noticed | not noticed |
| Device, host, date, executor | 1 line | marked *declared* | marked *declared* | marked *declared* |
| The fastest of many runs is handed in. | n runs | not noticed | not noticed | not noticed |
| The run is of a faster machine, or of more devices. | the machine | not noticed | not noticed | not noticed |

Runs of more than 64 ranks, with dropout or in FP16 have no steps that can be computed again: `--recompute` compares the first weights and the probes, or nothing. Such a bundle is not listed as recomputed.
Records of rules 2 (llmb 0.1) and of rules 3 (llmb up to 0.3) are ranked by `llmb report` with the mark `rules 2` or `rules 3`: rules 2 had no rule L1, and rules 3 no judged steps (G1). A run of today that also names llmb 0.3 as its own passes for one of rules 3. A pull request with such a run is refused.
"""

_COPIES = """
## With copies

Two bundles below one folder share no run id, no nonce and no evidence (`tests/unit/cli/test_copies.py`, `tests/unit/submission/test_clashes.py`).

| change | result |
|-|-|
| One bundle lies under several names; only the run id differs. | One row: the first bundle in git's history. Without history none. |
| A copy lies in a folder that sorts before the owner's. | The owner's row stays. |
| Three JSON files have no evidence. | Refused, and not ranked. |
| One run is two bundles with two keys and two seeds, and repeats itself. | Not REPRODUCED: both are one run. |
| A submitter repeats its own run, and signs with a second key. | Not REPRODUCED: *repeated by the same organisation*. |
| A second submitter, in no list of owners, repeats the run. | Not REPRODUCED: only keys of `allowed_signers` count. |
| As the first, with one changed number in every evidence file, and all derived values adapted. | **Two rows**, both self-reported. `llmb verify --recompute` refuses the copy. |
"""


def text() -> str:
    """Return the whole page."""
    parts = [_HEAD, _ONE]
    for one in FORGERIES:
        outcome = f"refused: `{one.check}`" if one.check else f"**not refused**: {one.unseen}"
        parts.append(f"| {one.name} | {' '.join(one.act.split())} | {outcome} |\n")
    parts += [_TREE, *(f"| {act} | {said} |\n" for act, said in TRICKS.values()), _COPIES, _LEVELS]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
