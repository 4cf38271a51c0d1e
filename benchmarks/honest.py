"""How many honest runs does the audit accuse, and how near do they come to its limits?

Each run is a real ``llmb run``: twins of the cheats, number formats, executors, modes, families,
ranks and debug presets. Widths, lengths, batch sizes, threads, seeds and a busy machine are drawn.
Each run adds one JSON line to a file, and is not made again where the file holds it.

python benchmarks/honest.py --runs 200 --jobs 2 --minutes 40 --output runs.jsonl
python benchmarks/honest.py --cheats --output runs.jsonl         cheats: where each rule separates
python benchmarks/honest.py --wide --output wide.jsonl           the true width; --cheats likewise
python benchmarks/honest.py --summary runs.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import margins
from margins import Margin

from llmb.plugin.builtin.host import compute_threads
from tests.cheats import runner, test_wide
from tests.cheats.corpus import CHEATS, INVALID, TWINS
from tests.cheats.test_twins_of_modes import CASES
from tests.e2e import harness, number_formats

#: Rules whose limits are numbers that an honest run can come near to.
NUMERIC = ("L1", "E1", "G1", "E2", "P1", "O2")
TINY, DEBUG, WIDE = "tiny", "debug preset", "true width"
#: The order in which sizes are run.
_SIZES = (TINY, DEBUG, WIDE)
#: Elements that share a scale: the test plugins of number formats take whole blocks of tokens.
_BLOCK = 32
#: Tokens of a step, at most: at these widths most of the time goes into the words of the head.
_MOST_TOKENS = 64
#: Words of a llama in three runs of four, instead of 32,000, at which a run takes twice as long.
_FEW_WORDS = 8000
_SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**5))"
#: Share of the runs that have two busy processes beside them.
_LOADED = 0.15
_SAID = 500


@dataclass(frozen=True)
class Case:
    """A run. ``None``: drawn, or left to the preset."""

    #: ``cpu``, a plugin of tests/cheats/plugins, or ``format:`` and how it rounds.
    subject: str
    precision: str
    size: str = TINY
    workload: str = "llama-1.4b"
    mode: str = "train"
    executor: str = "eager"
    #: How ranks share a step.
    ranks: str = "1"
    batch: int | None = None
    length: int | None = None
    width: int | None = None
    layers: int | None = None
    words: int | None = None
    steps: int | None = None
    threads: int | None = None
    audit: str | None = None
    #: Beside two busy processes.
    loaded: bool | None = None
    seed: int | None = None
    #: Other options of ``llmb run``.
    more: tuple[str, ...] = ()
    #: Rules that such a run is not observed by, as documented: it is UNVERIFIED and not accused.
    unobserved: tuple[str, ...] = ()
    #: Of a cheat the rules that must catch it; an honest run has none.
    caught_by: tuple[str, ...] = ()

    @property
    def compiled(self) -> bool:
        """Tell whether the model is compiled, which takes ten seconds or more."""
        return self.executor != "eager" or "compiled" in self.subject or "thunder" in self.subject

    @property
    def options(self) -> list[str]:
        """The options of ``llmb run``, but for plugin and precision."""
        sizes = {
            "batch-size": self.batch,
            "sequence-length": self.length,
            "hidden-size": self.width,
            "intermediate-size": self.width and 3 * self.width,
            "num-hidden-layers": self.layers,
            "num-attention-heads": self.width and 4,
            "timed-steps": self.steps,
            "seed": self.seed,
            "audit": self.audit,
        }
        workload = self.workload
        if self.words is not None:
            workload = json.dumps({"family": "llama", "vocab_size": self.words})
        found = [f"--{name}={value}" for name, value in sizes.items() if value is not None]
        if self.size != WIDE and not self.caught_by:  # theirs are among the other options
            found += [f"--workload={workload}", f"--mode={self.mode}"]
        return [*found, f"--executor={self.executor}", *_RANKS[self.ranks], *self.more]


_RANKS: dict[str, tuple[str, ...]] = {
    "1": (),
    "2, DDP": ("--nproc=2",),
    "2, FSDP2": ("--nproc=2", "--dp-shard=2"),
    "2, TP": ("--nproc=2", "--tp=2", "--sequence-parallel", "--loss-parallel"),
    "2, TP of whole sequences": ("--nproc=2", "--tp=2"),
    "2, PP": ("--nproc=2", "--pp=2"),
    "4, DDP of FSDP2": ("--nproc=4", "--dp-shard=2", "--dp-replicate=2"),
    "4, FSDP2 of TP": ("--nproc=4", "--dp-shard=2", "--tp=2"),
    "4, PP of FSDP2": ("--nproc=4", "--pp=2", "--dp-shard=2"),
}
_FORWARD = ("litgpt-forward", "forward")
_GENERATE = ("litgpt-generation", "generate")
#: Workloads of llamas of which the words may be fewer.
_WORDED = ("llama-1.4b", _FORWARD[0], _GENERATE[0])
_UNKNOWN = ("E1", "E2", "G1", "P1")
#: Name of the format, its bits, and ways to compute it (tests/e2e/number_formats.py).
_FORMATS = {
    "FP8": (8, ("FP8",)),
    "MXFP8": (8, ("MXFP8", "MXFP8-hybrid")),
    "MXFP6": (6, ("MXFP6", "MXFP6-E2M3")),
    "MXFP4": (4, ("MXFP4", "MXFP4-stochastic")),
    "NVFP4": (4, ("NVFP4", "NVFP4-recipe")),
    "ACME5": (5, ("MXFP5",)),
}
#: The numbers of ACME5, which a plugin declares because llmb does not know it.
_DATA = {"ACME5": "Format(Element(2, 2, 7.0, scale='e8m0', block=32))"}


#: What the flags of a twin say of an axis; lengths of windows and answers are drawn.
_AXES = {"workload": str, "executor": str, "batch-size": int, "sequence-length": int}
_NAMES = {"batch-size": "batch", "sequence-length": "length"}


def _twin(subject: str, precision: str, flags: Sequence[str]) -> Case:
    """Return the case of an honest twin, whose ``flags`` are fixed."""
    fixed: dict[str, Any] = {}
    more = []
    for flag in flags:
        name, _, value = flag.removeprefix("--").partition("=")
        if name in _AXES:
            fixed[_NAMES.get(name, name)] = _AXES[name](value)
        elif name not in ("timed-steps", "new-tokens"):
            more.append(flag)
    modes = dict((_FORWARD, _GENERATE))
    mode = modes.get(fixed.get("workload", ""), "train")
    return Case(subject, precision, mode=mode, more=tuple(more), **fixed)


def _templates() -> Iterator[Case]:
    """Yield every kind of honest run, in which the rest is drawn."""
    for twin in TWINS:
        if twin.needs is None or find_spec(twin.needs) is not None:
            yield _twin(twin.plugin, twin.precision, twin.flags)
    for subject, precision, flags in CASES:
        yield _twin(subject, precision, flags)
    for name, (_, ways) in _FORMATS.items():
        yield from (Case(f"format:{way}", name) for way in ways)
    for name in ("MXFP8", "NVFP4", "MXFP4"):
        for workload, mode in (_FORWARD, _GENERATE):
            yield Case(f"format:{name}", name, workload=workload, mode=mode)
    yield Case("format:MXFP5", "UNKNOWN5", unobserved=_UNKNOWN)
    for precision in ("FP32", "BF16", "FP16"):
        yield Case("cpu", precision)
        yield Case("cpu", precision, workload=_FORWARD[0], mode="forward")
        yield Case("cpu", precision, workload=_GENERATE[0], mode="generate")
    yield Case("cpu", "BF16", more=("--mixed-precision",))
    yield Case("cpu", "FP16", more=("--mixed-precision",))
    yield Case("cpu", "BF16", more=("--accumulate=2",))
    yield Case("cpu", "BF16", more=("--sac-freq=1/2",))
    for executor in ("inductor", *(["thunder"] if find_spec("thunder") else [])):
        yield Case("cpu", "FP32", executor=executor)
        yield Case("cpu", "BF16", executor=executor)
        yield Case("cpu", "BF16", workload=_FORWARD[0], mode="forward", executor=executor)
    for ranks in list(_RANKS)[1:]:
        yield Case("cpu", "FP32", ranks=ranks, layers=2)
        yield Case("cpu", "BF16", ranks=ranks, layers=2)
        # Clipped: the norm is added up in another order.
        yield Case("cpu", "FP32", ranks=ranks, layers=2, workload="nanotron-llama2-7b")
    for ranks in ("2, FSDP2", "2, TP"):
        for precision in ("FP32", "BF16"):
            yield Case("honest_explicit_attention", precision, ranks=ranks)
            yield Case("cpu", precision, ranks=ranks, workload="gpt2-125m")
    yield Case("cpu", "FP32", ranks="2, DDP", workload="gpt2-125m")
    yield Case("cpu", "BF16", ranks="2, FSDP2", workload="nemo-bert-base")
    for workload in ("gpt2-125m", "nemo-bert-base"):
        yield Case("cpu", "FP32", workload=workload)
        yield Case("cpu", "BF16", workload=workload)
        yield Case("cpu", "BF16", workload=workload, more=("--no-mixed-precision",))
    for workload in ("alcf-1t-readme", "llama-3.1-8b", "nanotron-llama2-7b", "litgpt-train"):
        yield Case("cpu", "BF16", workload=workload)
    # Other kernels than the honest run's, at every constant rate of a llama: they drift apart.
    for workload in ("alcf-7b", "llama-3.1-8b", "nanotron-llama2-7b", "litgpt-train"):
        for precision in ("FP32", "BF16"):
            yield Case("honest_explicit_attention", precision, workload=workload)
    yield Case("honest_fused", "BF16", workload="alcf-7b")
    for workload in ("llama-1.4b", "gpt2-125m", "nemo-bert-base"):
        yield Case("cpu", "BF16", DEBUG, workload)
        yield Case("cpu", "FP16", DEBUG, workload, more=("--mixed-precision", "--accumulate=2"))
    # Few elements in a gain or bias: chance moves their errors.
    for precision in ("FP32", "BF16", "FP16"):
        yield Case("cpu", precision, width=16)
        yield Case("cpu", precision, width=32, workload="gpt2-125m")
    yield Case("cpu", "FP32", DEBUG)
    yield Case("cpu", "BF16", DEBUG, *_FORWARD)
    yield Case("cpu", "BF16", DEBUG, *_GENERATE)


def plan(runs: int, draw: int) -> list[Case]:
    """Return ``runs`` honest runs from the seed ``draw``: every kind once, in any order, and again.

    The first of 300 are those of 200. Tiny ones come first, and compiled ones last of them.
    """
    rng, every, drawn = random.Random(draw), [*_templates()], list[Case]()
    while len(drawn) < runs:
        drawn += [_drawn(case, rng) for case in rng.sample(every, len(every))]
    return sorted(drawn[:runs], key=lambda case: (_SIZES.index(case.size), case.compiled))


def _drawn(case: Case, rng: random.Random) -> Case:
    """Return ``case`` with all that is left to chance; a preset keeps its own sizes."""
    more, one_rank = case.more, case.ranks == "1"
    length = rng.choice((16, 16, 32, 64))
    batch = rng.choice([n for n in (1, 2, 3, 4) if n * length <= _MOST_TOKENS])
    even = not one_rank or "--accumulate=2" in more
    shapes: dict[str, Any] = {
        "length": case.length or max(length, _BLOCK * case.subject.startswith("format:")),
        "batch": case.batch or (2 * max(1, batch // 2) if even else batch),
        "width": case.width or rng.choice((64, 64, 96, 128)),
        "layers": case.layers or rng.choice((1, 2, 3)),
        "words": rng.choice((None, *3 * (_FEW_WORDS,))) if case.workload in _WORDED else None,
        "steps": {"train": rng.choice((*5 * (20,), 50)), "forward": 10, "generate": 5}[case.mode],
    }
    if case.mode == "generate":
        more = (*more, "--new-tokens=8")
    if case.size == DEBUG:
        shapes, more = {}, (*case.more, "--preset=debug")
    return replace(
        case,
        **shapes,
        more=more,
        threads=rng.choice((*5 * (1,), 2)),
        audit=rng.choice(("quick", "quick", "full")),
        loaded=rng.random() < _LOADED,
        seed=rng.getrandbits(62),
    )


def cheats() -> list[Case]:
    """Return a run of each cheat that a numeric rule must catch, at the shapes of its test."""
    return [
        Case(cheat.plugin, cheat.precision, more=cheat.flags, threads=1, caught_by=cheat.rules)
        for cheat in CHEATS
        if cheat.outcome == INVALID and not cheat.unseen and {*cheat.rules} & {*NUMERIC}
    ]


def wide(*, cheating: bool) -> list[Case]:
    """Return the runs at the true width: honest ones, or the hardest cheats."""
    threads, shapes = compute_threads(), test_wide.SHAPES
    if cheating:
        acts = test_wide.HARDEST.items()
        return [
            Case(act, "BF16", WIDE, threads=threads, more=shapes, caught_by=tuple(sorted(rules)))
            for act, rules in acts
        ]
    return [Case(twin, "BF16", WIDE, threads=threads, more=shapes) for twin in test_wide.HONEST]


def started(case: Case, folder: Path) -> harness.Ended:
    """Make the run, in ``folder``, and return how it ended."""
    variables = {"OMP_NUM_THREADS": str(case.threads or 1)}
    options = case.options
    if case.subject == "cpu":
        fixed = ("--plugin=cpu", f"--precision={case.precision}")
        return harness.run(folder / "out", *fixed, *options, **variables)
    if case.subject.startswith("format:"):
        bits, _ = _FORMATS.get(case.precision, (5, ()))
        data = _DATA.get(case.precision, "None")
        declared = number_formats.precision(case.precision, bits, data)
        source = number_formats.source(declared, case.subject.partition(":")[2])
        plugin = harness.plugin(folder / "plugins", "odd", source)
        fixed = ("--plugin=odd", "--device=cpu", f"--precision={case.precision}")
        return harness.run(folder / "out", *fixed, *options, plugins=[plugin], **variables)
    native = case.size == WIDE
    return runner.run(folder, case.subject, case.precision, *options, native=native, **variables)


@contextmanager
def beside(loaded: bool) -> Iterator[None]:
    """Keep two processes busy meanwhile, if ``loaded``; they end with this one in any case."""
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(2 * loaded)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def line(case: Case) -> dict[str, Any]:
    """Make the run and return its line."""
    with tempfile.TemporaryDirectory(prefix="llmb-honest-") as folder, beside(bool(case.loaded)):
        cpu_s, began = _cpu_s(), time.perf_counter()
        found: dict[str, Any] = {"case": asdict(case)}
        try:
            ended = started(case, Path(folder))
            found |= {"code": ended.code, "said": ended.stderr.strip()[-_SAID:]}
            if ended.finished:
                found |= _of_record(ended)
        except AssertionError as error:  # nothing moved any more (tests/patience.py)
            found["said"] = str(error)[-_SAID:]
        wall_s = time.perf_counter() - began
        # The busy pair counts once it is waited for, after this.
        return {**found, "cpu_s": round(_cpu_s() - cpu_s, 2), "wall_s": round(wall_s, 2)}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _of_record(ended: harness.Ended) -> dict[str, Any]:
    record = ended.record
    findings, system = record["audit"]["findings"], record["system"]
    kept = ("id", "status", "level", "message", "measured", "honest", "limit")
    told = ("fail", "flag", "not_observed")
    return {
        "verdict": record["audit"]["verdict"],
        "rules": record["rules_version"],
        "findings": [{k: f[k] for k in kept} for f in findings if f["status"] in told],
        "numbers": [asdict(margin) for margin in margins.of_run(ended.directory)],
        "nonce": record["timing"]["repeats"][0]["nonce"],
        "load": [system[when]["load_1min"] for when in ("load_before", "load_after")],
    }


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the file; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(text) for text in path.read_text().splitlines()]


def make(cases: Iterable[Case], output: Path, jobs: int, minutes: float) -> int:
    """Make the runs that ``output`` lacks and add a line for each; return how many were left out.

    None is started once ``minutes`` are over.
    """
    made = {json.dumps(one["case"], sort_keys=True) for one in lines(output)}
    left = [c for c in cases if json.dumps(asdict(c), sort_keys=True) not in made]
    end, number = time.monotonic() + 60 * minutes, 0
    with ProcessPoolExecutor(jobs) as pool, output.open("a") as file:
        running: set[Future[dict[str, Any]]] = set()
        while running or (left and time.monotonic() < end):
            while left and len(running) < jobs and time.monotonic() < end:
                running.add(pool.submit(line, left.pop(0)))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                found = future.result()
                file.write(json.dumps(found) + "\n")
                file.flush()
                number += 1
                print(f"{number:4d} {_said(found)}", flush=True)
    return len(left)


def _said(found: dict[str, Any]) -> str:
    case = found["case"]
    where = f"{case['subject']} {case['precision']} {case['workload']} {case['mode']}"
    loaded = " loaded" * bool(case["loaded"])
    verdict = found.get("verdict", f"no record, code {found.get('code')}")
    against = "; ".join(accusations(found)) if not case["caught_by"] else ""
    return f"{verdict} {found['cpu_s']:.0f} CPU s {where}{loaded} {against}".rstrip()


def accusations(found: dict[str, Any]) -> list[str]:
    """Return what an honest run is accused of, or that it left no record.

    UNVERIFIED is none where nothing but the rules that the case names were not observed.
    """
    if "verdict" not in found:
        return [f"no record, code {found.get('code')}: {found['said']}"]
    expected, verdict = found["case"]["unobserved"], found["verdict"]
    against = [f for f in found["findings"] if f["status"] in ("fail", "flag")]
    if verdict == "UNVERIFIED":
        blocking = [f for f in found["findings"] if f["level"] == "block"]
        against += [
            f for f in blocking if f["status"] == "not_observed" and f["id"] not in expected
        ]
    return [f"{f['id']} {f['status']}: {f['message']}" for f in against]


def summary(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the tables of ``found``, lines of a file."""
    honest = [one for one in found if not one["case"]["caught_by"]]
    cheating = [one for one in found if one["case"]["caught_by"]]
    if honest:
        yield from _overview(honest)
        yield from _axes(honest)
        yield from _nearest(honest)
    if cheating:
        yield from _separation(honest, cheating)


def _overview(honest: Sequence[dict[str, Any]]) -> Iterator[str]:
    verdicts = Counter(one.get("verdict", "no record") for one in honest)
    accused = [one for one in honest if accusations(one)]
    said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    yield f"{len(honest)} honest runs: {said}; accused: {len(accused)}"
    for what in ("cpu_s", "wall_s"):
        each = sorted(one[what] for one in honest)
        mean, middle = sum(each) / len(each), each[len(each) // 2]
        yield f"{what}: mean {mean:.1f}, median {middle:.1f}, most {each[-1]:.1f}"
    for one in accused:
        yield f"accused: {'; '.join(accusations(one))}"
        yield f"  {json.dumps({**one['case'], 'nonce': one.get('nonce')})}"


def _axes(honest: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield from ("", "| axis | runs |", "|---|---|")
    for axis in (field.name for field in fields(Case)):
        if axis in ("seed", "unobserved", "caught_by"):
            continue
        counts: Counter[str] = Counter()
        for one in honest:
            value = one["case"][axis]
            counts[" ".join(value) if isinstance(value, list) else str(value)] += 1
        of_each = (f"{name or '-'} {count}" for name, count in sorted(counts.items()))
        yield f"| {axis} | {', '.join(of_each)} |"


def _numbers(found: dict[str, Any]) -> list[Margin]:
    return [Margin(**number) for number in found.get("numbers", ())]


def _by_ratio(pair: tuple[Margin, Any]) -> float:
    return math.inf if math.isnan(pair[0].ratio) else pair[0].ratio


def _nearest(honest: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each number: the honest run that came nearest to its limit."""
    every: dict[tuple[str, str], list[tuple[Margin, dict[str, Any]]]] = defaultdict(list)
    for one in honest:
        for margin in _numbers(one):
            every[margin.rule, margin.what].append((margin, one["case"]))
    yield from ("", "| rule | number | honest, nearest to its limit | of | ratio | run | runs |")
    yield "|---|---|---|---|---|---|---|"
    for (rule, what), pairs in sorted(every.items()):
        nearest, case = max(pairs, key=_by_ratio)
        shown = f"{nearest.measured:.3g} | {nearest.limit:.3g} | {nearest.ratio:.2f}"
        run = f"{case['subject']} {case['precision']} {case['workload']}"
        yield f"| {rule} | {what} | {shown} | {run} | {len(pairs)} |"


def _of_rule(found: dict[str, Any], rule: str) -> float | None:
    """Return how near a run came to any limit of ``rule``, None where it has no number of it."""
    # In training the probes' bits are those of both rules.
    rules = (rule, "E2") if rule == "P1" else (rule,)
    ratios = [(m, None) for m in _numbers(found) if m.rule in rules]
    return _by_ratio(max(ratios, key=_by_ratio)) if ratios else None


def _separation(
    honest: Sequence[dict[str, Any]], cheating: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """Yield a row for each rule: honest runs and cheats that it must catch, measured by limit."""
    yield ""
    yield "| rule | honest, largest | runs | cheats that break a limit, smallest | which | cheats |"
    yield "|---|---|---|---|---|---|"
    otherwise: list[str] = []
    for rule in NUMERIC:
        own = [value for one in honest if (value := _of_rule(one, rule)) is not None]
        broken: list[tuple[float, str]] = []
        for one in (each for each in cheating if rule in each["case"]["caught_by"]):
            name = f"{one['case']['subject']}, {one['case']['precision']}"
            failed = any(f["id"] == rule and f["status"] == "fail" for f in one.get("findings", ()))
            value = _of_rule(one, rule)
            if failed and value is not None and value > 1:
                broken.append((value, name))
            else:
                otherwise.append(f"{rule} {name}" + " (not caught)" * (not failed))
        largest = f"{max(own):.2f}" if own else "-"
        value, name = min(broken) if broken else (math.nan, "-")
        yield f"| {rule} | {largest} | {len(own)} | {value:.2f} | {name} | {len(broken)} |"
    yield f"Caught by something that is no number of the rule: {', '.join(otherwise) or 'none'}"


def main() -> None:
    """Make runs, or summarise those of a file."""
    assert __doc__ is not None
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("runs.jsonl"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start none after them")
    parser.add_argument("--draw", type=int, default=23, help="the seed that runs are drawn from")
    parser.add_argument("--cheats", action="store_true", help="cheats instead of honest runs")
    parser.add_argument("--wide", action="store_true", help="at the true width: 8 GB a run")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="subjects or ranks that contain TEXT"
    )
    parser.add_argument("--summary", type=Path, metavar="FILE", help="print what a file holds")
    given = parser.parse_args()
    if given.summary is not None:
        print("\n".join(summary(lines(given.summary))))
        return
    if given.wide:
        cases = wide(cheating=given.cheats)
    else:
        cases = cheats() if given.cheats else plan(given.runs, given.draw)
    cases = [case for case in cases if given.only in f"{case.subject} {case.ranks}"]
    left = make(cases, given.output, given.jobs, given.minutes)
    print(f"{left} runs are left" if left else "all runs are made")


if __name__ == "__main__":
    os.environ.pop("LLMB_KEEP_RECORDS", None)
    main()
