"""The scripts for a machine that is lent: files they leave, order of stages, missing packages."""

from __future__ import annotations

import errno
import itertools
import json
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from llmb import workloads

GPU = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"
#: What a lent machine brings back.
MOST_FILES, MOST_BYTES, MOST_TOTAL = 8, 16 << 20, 64 << 20
#: What is left of ten minutes for stages: run.sh's limit without its reserve.
STAGES_S = 565


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(GPU)
    yield
    for name in set(sys.modules) - before:
        if str(GPU) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def kept(folder: Path) -> set[str]:
    """Return the names in all zips of ``folder``, each of which must be whole."""
    names: set[str] = set()
    for file in folder.glob("*.zip"):
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None
            names |= set(archive.namelist())
    return names


class Faults:
    """Lets the ``at``-th write of the keeper fail, as on a full disk."""

    def __init__(self, keep: ModuleType, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.count, self.at = 0, at
        places = ((keep.os, "replace"), (keep.shutil, "copyfile"), (Path, "write_text"))
        ends = ((zipfile.ZipFile, "writestr"), (zipfile.ZipFile, "_write_end_record"))
        for owner, name in (*places, *ends):
            monkeypatch.setattr(owner, name, self.around(getattr(owner, name)))

    def around(self, function):
        def faulty(*arguments, **options):
            self.count += 1
            if self.count == self.at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return function(*arguments, **options)

        return faulty


def test_a_fault_at_any_write_leaves_every_earlier_stage_whole_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = import_module("keep")
    for at in itertools.count(1):
        folder = tmp_path / str(at)
        folder.mkdir()
        keeper = keep.Keeper(folder)
        keeper.add({"01.log.txt": b"first"})
        keeper.summarise({"stages": [1]}, "01")
        with monkeypatch.context() as patch:
            faults = Faults(keep, patch, at)
            with suppress(OSError):
                keeper.add({"02.log.txt": b"second", "02.record.json": b"{}"})
            with suppress(OSError):
                keeper.summarise({"stages": [1, 2]}, "01\n02")
        if faults.count < at:
            break
        assert kept(folder) >= {"01.log.txt"}
        assert json.loads((folder / "summary.json").read_text())["stages"][0] == 1
        assert (folder / "summary.txt").read_text() in ("01\n", "01\n02\n")
        assert not [*folder.glob("*.part")]
        keeper.add({"03.log.txt": b"third"})
        assert len(kept(folder)) == 4, "what could not be written then is there now"
    assert at > 7, "every kind of write had its fault"


def test_bundles_give_way_to_later_records_and_no_limit_of_the_machine_is_broken(
    tmp_path: Path,
) -> None:
    keeper = import_module("keep").Keeper(tmp_path)
    for stage in range(1, 9):
        keeper.add({f"{stage:02}.record.json": b"{}"})
        keeper.add_bundle(f"{stage:02}.bundle.zip", bytes([stage]) * (7 << 20))
        keeper.summarise({}, "")
    bundles = {name for name in kept(tmp_path) if name.endswith(".bundle.zip")}
    assert bundles == {f"0{stage}.bundle.zip" for stage in range(1, 7)}
    assert kept(tmp_path) - bundles == {f"{stage:02}.record.json" for stage in range(1, 9)}
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert (len(sizes) < MOST_FILES, max(sizes) < MOST_BYTES) == (True, True)
    assert sum(sizes) + max(sizes) < MOST_TOTAL, "a .part that a kill leaves included"
    left_out = json.loads((tmp_path / "summary.json").read_text())["left_out"]
    assert left_out == [f"0{stage}.bundle.zip" for stage in range(7, 9)]
    assert "07.bundle.zip" in (tmp_path / "summary.txt").read_text()


def test_a_file_larger_than_a_zip_may_be_is_left_out_and_the_others_of_its_stage_are_kept(
    tmp_path: Path,
) -> None:
    keeper = import_module("keep").Keeper(tmp_path, zip_bytes=10_000)
    noise = bytes(range(256)) * 100
    keeper.add({"01.log.zip": noise, "01.record.json": b"{}"})
    assert (kept(tmp_path), keeper.left_out) == ({"01.record.json"}, ["01.log.zip"])


def options(*arguments: str) -> object:
    return import_module("official").parsed(["out", "--plugin", "cpu", *arguments])


def test_the_compiled_headline_and_fp8_fit_into_one_call_after_the_debug_runs() -> None:
    found = import_module("official").stages(options())
    names = [stage.name for stage in found]
    assert names[:4] == ["doctor", "debug eager", "debug compiled", "BF16"]
    wanted = found[: names.index("FP8") + 1]
    assert sum(stage.seconds for stage in wanted) < STAGES_S
    assert names[-5:] == ["FP16", "TF32", "FP32", "search", "links"]
    by_name = dict(zip(names, found, strict=True))
    assert "inductor" in by_name["BF16"].command
    assert "inductor" not in by_name["search"].command
    assert {name for name in names if name.startswith("BF16 at")} == {
        *("BF16 at 96", "BF16 at 64", "BF16 at 16")
    }


def test_several_devices_are_examined_debugged_and_then_measured_within_one_call() -> None:
    found = import_module("official").stages(options("--devices", "4"))
    names = [stage.name for stage in found]
    assert names[:4] == ["doctor", "node", "debug DDP", "debug FSDP"]
    official = {stage.name: " ".join(stage.command) for stage in found[4:6]}
    assert "--nproc 4" in official["BF16 DDP"]
    assert "--dp-shard 4 --zero 3" in official["BF16 FSDP2"]
    assert sum(stage.seconds for stage in found[:6]) < STAGES_S


def test_a_stage_that_is_not_there_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        options("--only", "BF16,BF15")
    assert ended.value.code == 2
    assert "no stage BF15: there are doctor" in capsys.readouterr().err


def test_missing_packages_and_what_present_ones_lack_are_named_with_the_command_that_fetches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = import_module("needs")
    info = tmp_path / "there-1.0.dist-info"
    info.mkdir()
    needed = "Requires-Dist: below-it\nRequires-Dist: other; extra == 'more'\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: there\nVersion: 1.0\n{needed}")
    monkeypatch.syspath_prepend(tmp_path)
    wanted = ["there", "pluggy>=999", "not-there", "matplotlib>=999", "gone; python_version < '3'"]
    assert needs.missing(wanted, needs.FIGURES) == ["pluggy", "not-there", "below-it"]
    line = needs.message(["pluggy"])
    assert ("pip download" in line, line.count("\n")) == (True, 0)
    assert {"torchao>=0.14"} < {*needs.required("cuda")} - {*needs.required("cpu")}


def test_an_invalid_run_keeps_its_figure_and_a_failed_one_its_last_words() -> None:
    rows = import_module("rows")
    rates = [{"kind": "all_reduce", "bytes": 2**28, "bus_bytes_per_second": 3.6e11}]
    run = {
        "tokens_per_second": 1234.5,
        "batch_size": 64,
        "fraction_of_ceiling": 0.5,
        "mfu": None,
        "class": "official",
        "verdict": "INVALID",
        "broken": ["T1"],
        "interconnect": {"library": "nccl", "rates": rates},
    }
    assert rows.outcome(5, [run]) == "INVALID"
    assert rows.outcome(5, []) == "failed"
    row = {"number": 4, "stage": "BF16", "outcome": "INVALID", "exit_code": 5, "runs": [run]}
    line = rows.line(row)
    assert "INVALID; 1,234 tokens/s at batch size 64, 50.0% of the ceiling" in line
    assert "nccl all-reduce 360.0 GB/s bus at 256 MiB" in line
    assert "[official, INVALID (T1 broken)]" in line
    row = {**row, "outcome": "failed", "exit_code": 4, "runs": [], "tail": ["a", "out of memory"]}
    assert rows.line(row).endswith("failed with 4: out of memory")


def test_the_plain_loop_has_the_sizes_of_the_run_it_is_held_against() -> None:
    plain = import_module("plain")
    shape = workloads.find("llama-1.4b", {}, None).shape
    run = import_module("llmb.cli.run")
    sizes = {name: size for name, size in run._DEBUG_PRESET.items() if hasattr(shape, name)}
    assert plain.debug(shape) == workloads.find("llama-1.4b", sizes, None).shape


def test_a_stage_whose_results_cannot_be_read_is_said_and_the_next_one_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = import_module("official")
    tried: list[str] = []

    def do(session: object, number: int, stage: object) -> None:
        tried.append(stage.name)
        session.rows.append({"stage": stage.name, "number": number, "outcome": "done"})
        if stage.name == "doctor":
            raise ValueError("half a record")

    monkeypatch.setattr(official.Session, "do", do)
    for variable in ("LLMB_LOAD_PLUGINS", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, "")  # put back at the end
    only = ("--only", "doctor,plain loop", "--scratch", str(tmp_path / "scratch"))
    official.main([str(tmp_path), "--plugin", "cpu", "--without", "torchao", *only])
    assert tried == ["doctor", "plain loop"]
    (first,) = json.loads((tmp_path / "summary.json").read_text())["stages"]
    assert first["outcome"] == "not kept: ValueError('half a record')"
