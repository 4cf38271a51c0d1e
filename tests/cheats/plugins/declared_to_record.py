"""The CPU is declared to be a device that records its steps and runs the steps later."""

# Until docs/adr/0095 rule L1 did not apply to such a device. With the model of ``replay_forged``,
# which computes nothing after the first judged step, a run was CONSISTENT.

from llmb.plugin import Lacks, hookimpl
from llmb.plugin.builtin.cpu import CpuBackend


class Recording(CpuBackend):
    lacks = Lacks(eager_kernels=True)


@hookimpl
def llmb_backend():
    return Recording()
