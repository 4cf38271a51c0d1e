"""``llmb.run``: a run from Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from llmb.api.calling import run_directory_of
from llmb.api.options import words_of
from llmb.api.progress import display
from llmb.api.result import RunResult, load

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from llmb.api.options import PathText, RunOptions, WorkloadChoice
    from llmb.config import OptionValue


def run(
    *,
    workload: WorkloadChoice | None = None,
    preset: Literal["debug"] | None = None,
    precision: str | None = None,
    batch_size: int | Literal["auto"] | None = None,
    device: str | None = None,
    plugin: str | None = None,
    plugin_options: Mapping[str, OptionValue] | None = None,
    within: str | float | None = None,
    repeats: int | None = None,
    nproc: int | None = None,
    audit: Literal["quick", "full", "complete", "off"] | None = None,
    output_dir: PathText | None = None,
    progress: bool = False,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Run the benchmark as ``llmb run`` does, and return the result.

    The run is made by processes of its own, so plugins never run in this process. Environment,
    working folder, threads and signal handlers of this process stay as they are. Two calls of one
    program, from two threads, take turns. Nothing is printed, except by ``progress=True``.

    Args:
        workload: a name of ``llmb workload list``, a file, or a mapping of family and sizes such as
            ``{"family": "llama", "hidden_size": 512}``; None: llama-1.4b, or the largest smaller
            size that fits ``within``.
        preset: "debug" is a tiny model: seconds, never ranked.
        precision: a number format such as "BF16"; None: the fastest that fits.
        batch_size: sequences per step; "auto" searches the fastest; None: 1 on a CPU, else "auto".
        device: a torch device such as "cpu"; None: the first of the plugin.
        plugin: a name of ``llmb plugin list``; None: the best here.
        plugin_options: options of the plugin, such as ``{"threads": 4}``.
        within: longest estimated time of the whole run, in seconds or as "30m".
        repeats: timed windows, each in fresh processes; 3 or more give a 95 % interval between
            processes.
        nproc: ranks on this machine, one per device.
        audit: depth of the audit; None: full, and quick for a debug run.
        output_dir: folder for run directories; None: ``runs``, or the folder of ``llmb.toml``.
        progress: show progress on stderr, in a notebook as a bar.
        options: all further options of ``llmb run --help-all``, see ``llmb.RunOptions``.

    Raises:
        UsageError: an option, or a combination of options, cannot work.
        UnavailableError: plugin, device, format or package is not there.
        RunFailedError: the run started and did not finish.
        AuditInvalidError: a blocking rule failed; ``llmb.load(error.run_dir)`` has the run.
        KeyboardInterrupt: the run was interrupted and its processes have ended.

    Example:
        >>> result = llmb.run(preset="debug", precision="BF16")  # doctest: +SKIP
        >>> result.tokens_per_second, result.verdict  # doctest: +SKIP
        (9876.5, <Verdict.CONSISTENT: 'CONSISTENT'>)
    """
    words = words_of(
        {
            "workload": workload,
            "preset": preset,
            "precision": precision,
            "batch_size": batch_size,
            "device": device,
            "plugin": plugin,
            "plugin_options": plugin_options,
            "within": within,
            "repeats": repeats,
            "nproc": nproc,
            "audit": audit,
            "output_dir": output_dir,
            **options,
        }
    )
    with display(progress=progress) as shown:
        return load(run_directory_of(words if progress else [*words, "--quiet"], shown))
