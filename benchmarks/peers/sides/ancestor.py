"""gpt-bench: its own package, unchanged, from a folder that the caller gives."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

import torch
from gate import Gate
from job import Job

from llmb.reference.shapes import LlamaShape


def bench(job: Job, gate: Gate) -> None:
    """Run its main function with a loop that does not end after its 50 steps."""
    shape = job.shape
    assert isinstance(shape, LlamaShape)
    assert job.gpt_bench is not None
    folder = Path(job.gpt_bench)
    sys.path.insert(0, str(folder))
    module = importlib.import_module("bench.__main__")
    version = importlib.import_module("bench.__version__")
    # Its number of steps is a literal; the gate decides when it is over.
    vars(module)["range"] = lambda _: itertools.count()
    sys.argv = [
        "bench",
        f"--batch-size={job.batch_size}",
        "--precision=BF16",
        "--device=cpu",
        f"--sequence-length={shape.sequence_length}",
        f"--hidden-size={shape.hidden_size}",
        f"--intermediate-size={shape.intermediate_size}",
        f"--num-hidden-layers={shape.num_hidden_layers}",
        f"--num-attention-heads={shape.num_attention_heads}",
    ]
    build = module.LlamaForCausalLM

    def counted(config: object) -> torch.nn.Module:
        net: torch.nn.Module = build(config)
        gate.about.parameters = sum(p.numel() for p in net.parameters())
        return net

    module.LlamaForCausalLM = counted
    gate.about.note = "eager, explicit attention, AdamW as torch chooses, one batch for all steps"
    known = getattr(version, "version", "unknown")
    gate.about.versions = {"gpt-bench": str(known), "torch": torch.__version__}
    module.main()
