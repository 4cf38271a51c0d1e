"""Shell scripts of ``llmb launch`` say what was asked for, and quote whatever they are given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from llmb.errors import UsageError
from llmb.parallel.jobs.job import LaunchJob, with_verb
from llmb.parallel.jobs.kinds import SCHEDULERS
from llmb.parallel.jobs.site import Site
from llmb.parallel.jobs.yaml import yaml
from tests import needs

HOSTILE = ("run", "--workload", 'a b\'; rm -rf "$HOME" #', "--dp-shard", "$(touch pwned)", "`x`")
SITE = Site(
    account="m1234",
    partition="gpu",
    image="/images/llmb.sif",
    container=("apptainer", "exec", "--bind", "/a b;touch pwned", "{image}"),
    modules=("frameworks", "cray/1.2"),
    venv="/no where/$(touch pwned)",
    interface="hsn0,hsn1",
    environment={"GREETING": 'a\'b "c" $(touch pwned) `touch pwned` \\ ; #', "EMPTY": ""},
    directives=("--comment=$(touch pwned)",),
)
#: What a site has of ``SITE`` where nobody queues.
BARE = Site(environment=SITE.environment, interface="eth0")


def job(*arguments: str, nodes: int = 2, minutes: int = 90, site: Site | None = None) -> LaunchJob:
    words = arguments or ("run", "--dp-shard", "8")
    return LaunchJob(nodes, 4, words, minutes=minutes, site=site or Site())


def test_slurm_starts_torchrun_once_a_node_and_restarts_nothing() -> None:
    text = SCHEDULERS["slurm"].write(job())
    for words in (
        "#SBATCH --nodes=2\n",
        "#SBATCH --ntasks-per-node=1\n",
        "#SBATCH --gpus-per-node=4\n",
        "#SBATCH --time=01:30:00\n",
        "srun --kill-on-bad-exit=1 ",
        "--nproc-per-node=4 --max-restarts=0",
        '--master-addr="$first" --master-port=29500',
        '--node-rank="$SLURM_NODEID"',
        "-m llmb run --dp-shard 8\n",
    ):
        assert words in text


@pytest.mark.parametrize(("minutes", "seconds"), [(90, 120), (8, 120), (4, 60), (1, 15)])
def test_slurm_warns_llmb_two_minutes_before_the_end_or_a_quarter_of_a_short_job(
    minutes: int, seconds: int
) -> None:
    text = SCHEDULERS["slurm"].write(job(minutes=minutes))
    assert f"#SBATCH --signal=USR1@{seconds}\n" in text
    assert """bash -c 'trap "" USR1; exec torchrun""" in text


def test_slurm_is_not_asked_for_devices_twice_nor_for_ranks_on_processors() -> None:
    for directive in ("--gres=gpu:4", "--gpus-per-task=1", "-G 8"):
        text = SCHEDULERS["slurm"].write(job(site=Site(directives=(directive,))))
        assert "--gpus-per-node" not in text
        assert f"#SBATCH {directive}\n" in text
    assert "--gpus-per-node" in SCHEDULERS["slurm"].write(
        job(site=Site(directives=("--gres=craynetwork:0", "--gpu-bind=none")))
    )
    on_processors = LaunchJob(2, 4, ("run",), on_devices=False)
    assert "--gpus-per-node" not in SCHEDULERS["slurm"].write(on_processors)


def test_a_site_is_in_the_directives_and_before_the_program() -> None:
    text = SCHEDULERS["slurm"].write(
        job(site=SITE.model_copy(update={"qos": "regular", "constraint": "gpu&hbm80g"}))
    )
    for words in (
        "#!/bin/bash -l\n",
        "#SBATCH --account=m1234\n",
        "#SBATCH --partition=gpu\n",
        "#SBATCH --qos=regular\n",
        "#SBATCH --constraint=gpu&hbm80g\n",
        "\nmodule load frameworks cray/1.2 || exit 1\n",
        "\nexport NCCL_SOCKET_IFNAME=hsn0,hsn1\n",
        "    apptainer exec --bind '/a b;touch pwned' /images/llmb.sif \\\n    bash -c ",
    ):
        assert words in text


def test_pbs_starts_every_rank_and_says_where_they_meet() -> None:
    text = SCHEDULERS["pbs"].write(job(site=Site(account="m1", partition="prod")))
    assert "mpiexec -n 8 --ppn 4 llmb run --dp-shard 8\n" in text
    assert "export MASTER_ADDR MASTER_PORT" in text
    assert "#PBS -l walltime=01:30:00\n" in text
    assert "#PBS -A m1\n#PBS -q prod\n" in text
    assert "\n# Untested: " in text


def test_torchrun_says_what_to_paste_on_each_node() -> None:
    text = SCHEDULERS["torchrun"].write(job(nodes=3))
    assert [
        line.split(":  ")[1] for line in text.splitlines() if "node " in line and ":  " in line
    ] == [f"bash FILE {node} HOST0" for node in range(3)]
    assert "torchrun --standalone --nproc-per-node=4" in SCHEDULERS["torchrun"].write(job(nodes=1))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "torchrun"])
@pytest.mark.parametrize("site", [Site(), BARE, SITE], ids=["none", "bare", "hostile"])
@pytest.mark.parametrize("arguments", [("run",), HOSTILE], ids=["plain", "hostile"])
def test_scripts_are_clean_shell_that_passes_on_what_it_is_given_as_it_is(
    tmp_path: Path, scheduler: str, site: Site, arguments: tuple[str, ...], nodes: int
) -> None:
    script = tmp_path / "job.sh"
    text = SCHEDULERS[scheduler].write(job(*arguments, site=site, nodes=nodes))
    script.write_text(text)
    if needs.has_program("shellcheck"):
        # 2016: what a node's own shell reads is in single quotes. 1091: files that are not here.
        check = ["shellcheck", "--exclude=SC2016,SC1091", str(script)]
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    # What would start ranks prints the last words that it is given, and what a rank would see.
    shown = '{ printf "%s\\n" "$GREETING" "$@"; exit; }'
    fakes = "".join(f"{name}() {shown}\n" for name in ("srun", "mpiexec", "exec", "apptainer"))
    fakes += 'GREETING=; module() { :; }; .() { printf "%s\\n" "$1"; }\n'
    fakes += "scontrol() { echo node0; }; export PBS_O_WORKDIR=. PBS_NODEFILE=/dev/null\n"
    fakes += "export SLURM_JOB_NODELIST=n SLURM_NNODES=2 SLURM_JOB_ID=7\n"
    done = subprocess.run(
        ["bash", "-c", fakes + text, "job.sh", "0", "host0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout.splitlines()
    assert said[-len(arguments) :] == list(arguments)
    assert site.environment.get("GREETING", "") in said
    if site.venv is not None:
        assert said[0] == "/no where/$(touch pwned)/bin/activate"
    assert os.listdir(tmp_path) == ["job.sh"]


def test_no_value_ends_a_directive() -> None:
    text = SCHEDULERS["slurm"].write(job(*HOSTILE, site=SITE))
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert directives[-1] == "#SBATCH --comment=$(touch pwned)"
    assert text.splitlines()[1 : 1 + len(directives)] == directives


def test_a_kind_of_file_refuses_a_key_that_it_does_not_use() -> None:
    for scheduler, site, said in (
        ("pbs", Site(qos="regular"), "qos: not a key of pbs, which uses account, partition"),
        ("torchrun", Site(account="m1"), "account: not a key of torchrun"),
        ("trainjob", Site(image="a", modules=("b",)), "modules: not a key of trainjob"),
        ("slurm", Site(claim="a"), "claim: not a key of slurm"),
        ("slurm", Site(image="a"), "image: slurm starts no container by itself"),
        ("slurm", Site(container=("x", "{image}")), "container: it starts {image}: add the key"),
        ("jobset", Site(), "--print jobset: name a container image with llmb in it"),
    ):
        with pytest.raises(UsageError) as refused:
            SCHEDULERS[scheduler].check(site)
        assert str(refused.value).startswith(said)


@pytest.mark.parametrize("scheduler", ["trainjob", "jobset"])
def test_kubernetes_starts_each_pod_once_with_shared_memory_and_a_volume(scheduler: str) -> None:
    text = SCHEDULERS[scheduler].write(job(site=Site(image="a/b:c", resource="vendor.example/gpu")))
    for words in (
        'args: ["-m", "llmb", "run", "--dp-shard", "8"]\n',
        'image: "a/b:c"\n',
        "backoffLimit: 0\n",
        "activeDeadlineSeconds: 5400\n",
        "restartPolicy: Never\n",
        'sizeLimit: "4Gi"\n',
        "claimName: llmb-runs\n",
        "vendor.example/gpu: 4\n",
    ):
        assert text.count(words) == 1


def test_a_text_of_yaml_is_a_text() -> None:
    assert yaml({"a": "yes", "b": ["no", "1"], "c: d": "1.0", "e": 1, "f": {"g": []}}) == (
        'a: "yes"\nb: ["no", "1"]\n"c: d": "1.0"\ne: 1\nf:\n  g: []\n'
    )


def test_arguments_that_begin_with_an_option_are_those_of_run() -> None:
    assert with_verb(("--tp", "8")) == ("run", "--tp", "8")
    assert with_verb(()) == ("run",)
    assert with_verb(("sweep",)) == ("sweep",)
