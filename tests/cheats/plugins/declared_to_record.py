"""The CPU is declared to record its steps, and no step of such a device is replayed."""

# Rule L1 did not apply, by the word of the plugin. With the model of ``replay_forged``, which
# computes nothing after the first judged step, a run was CONSISTENT.

from llmb.plugin import Lacks, hookimpl
from llmb.plugin.builtin.cpu import CpuBackend


class Recording(CpuBackend):
    lacks = Lacks(eager_kernels=True)


@hookimpl
def llmb_backend():
    return Recording()
