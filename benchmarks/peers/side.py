"""The process of one side: ``python side.py SIDE JOB``; run.py starts it and hands out turns."""

from __future__ import annotations

import sys
from importlib import import_module

from gate import Gate
from job import Job

#: Side -> module and function, and the modes and families it has.
SIDES = {
    "llmb": ("sides.ours", "eager"),
    "llmb-inductor": ("sides.ours", "inductor"),
    "transformers": ("sides.hugging_face", "plain"),
    "transformers-dynamic": ("sides.hugging_face", "dynamic_cache"),
    "optimum-benchmark": ("sides.optimum", "scenario"),
    "litgpt": ("sides.lightning", "command"),
    "litgpt-loop": ("sides.lightning", "loop"),
    "gpt-bench": ("sides.ancestor", "bench"),
}


def main() -> None:
    """Do the job, passing the gate after every step; never returns by itself."""
    name, job = sys.argv[1], Job.from_json(sys.argv[2])
    gate = Gate(job.warmup_steps, job.tokens_per_step)
    module, function = SIDES[name]
    if job.keep_memory:
        from llmb.plugin.builtin.host import keep_freed_memory

        keep_freed_memory()
    if job.mode == "train":
        from torch.optim.optimizer import register_optimizer_step_post_hook

        # The same instrument for everybody, in whatever loop the step is taken.
        register_optimizer_step_post_hook(gate.passed)
    getattr(import_module(module), function)(job, gate)
    sys.exit("the side's loop ended by itself")


if __name__ == "__main__":
    main()
