"""The plugin's own communication library is gloo, which shares large tensors of BF16 in INT8.

Half of the traffic of BF16. Probes and the last step are honest.
"""

import torch
import torch.distributed as dist

from llmb.plugin import hookimpl
from llmb.plugin.builtin.cpu import CpuBackend

from .kit import Unjudged

FREE = []


class Done(dist._Work):
    def __init__(self, result):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)

    def wait(self, timeout=None):
        return True

    def get_future(self):
        return self.future


class Library(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self.gloo)

    def allreduce(self, tensors, opts=None):
        (tensor,) = tensors
        if not (FREE and FREE[0] and tensor.dtype == torch.bfloat16 and tensor.numel() > 4096):
            self.gloo.allreduce(tensors, opts or dist.AllreduceOptions()).wait()
            return Done(tensors)
        blocks = torch.nn.functional.pad(tensor.flatten(), (0, -tensor.numel() % 32)).view(-1, 32)
        scale = blocks.abs().amax(-1, keepdim=True).float().clamp(min=1e-30) / 127
        total = 0
        for kind, mine in (("n", (blocks.float() / scale).round().to(torch.int8)), ("s", scale)):
            got = [torch.empty_like(mine) for _ in range(self.size())]
            self.gloo.allgather([got], [mine]).wait()
            total = got if kind == "n" else [n.float() * s for n, s in zip(total, got, strict=True)]
        tensor.copy_(sum(total).flatten()[: tensor.numel()].view(tensor.shape))
        return Done(tensors)

    def broadcast(self, tensors, opts=None):
        self.gloo.broadcast(tensors, opts).wait()
        return Done(tensors)

    def allgather(self, outputs, inputs, opts=None):
        self.gloo.allgather(outputs, inputs).wait()
        return Done(outputs)

    def barrier(self, opts=None):
        self.gloo.barrier().wait()
        return Done([])


def create(store, rank, size, timeout):
    return Library(store, rank, size, timeout)


dist.Backend.register_backend("gloo8", create, devices=["cpu"])


class Narrow(CpuBackend):
    distributed_backend = "gloo8"


@hookimpl
def llmb_backend(config):
    return Narrow()


@hookimpl
def llmb_post_process_model(model, config):
    FREE.append(Unjudged(model, config))
    return model
