"""FP16 under autocast: only those steps are computed that are read, once the answer has come."""

# In FP16 no rule compares every step. The blind sample before the answer, and the answer, come
# through methods of llmb that the plugin replaces, and puts back with the last answer. Without a
# comparison in each pause nothing was seen: about 58 of 63 forward and backward passes are left
# out, nine times the tokens/s.

import torch

from llmb.config import BF16, FP16, FP32
from llmb.observe.step_sampler import StepSampler
from llmb.plugin import hookimpl
from llmb.wire.channel import Channel
from llmb.wire.messages import AuditRequest, KeepWeights

from .kit import given


@hookimpl(tryfirst=True)
def llmb_precisions():
    return [p.model_copy(update={"native": False}) for p in (FP32, BF16, FP16)]


class Seen:
    sampler = ids = loss = shown = None
    computed = ended = False
    steps = 0


@hookimpl
def llmb_post_process_model(model, config):
    parameters, forward = list(model.parameters()), model.forward
    receive, glance = Channel.receive, StepSampler.glance
    zeros = [torch.zeros_like(p) for p in parameters]

    def step(ids, labels=None):
        if labels is None or Seen.ended or not torch.is_grad_enabled():
            return forward(ids, labels)
        Seen.steps += 1
        Seen.ids = ids
        if Seen.steps <= 3 or Seen.loss is None:
            Seen.computed = True
            loss = forward(ids, labels)
            Seen.loss = loss.detach()
            return loss
        Seen.computed = False
        Seen.shown = given(Seen.loss, zeros, parameters)
        return Seen.shown

    def told(self, timeout_s=None):
        message = receive(self, timeout_s)
        if isinstance(message, AuditRequest | KeepWeights):
            if not Seen.computed:
                with torch.enable_grad(), torch.autocast("cpu", dtype=torch.float16):
                    loss = forward(Seen.ids, labels=Seen.ids)
                    found = torch.autograd.grad(loss * 4096, parameters)
                Seen.shown.detach().copy_(loss.detach())
                for parameter, gradient in zip(parameters, found, strict=True):
                    parameter.grad = (gradient / 4096).detach()
            glance(Seen.sampler)
            if getattr(message, "last", False):
                Seen.ended = True
                Channel.receive, StepSampler.glance = receive, glance
        return message

    def blind(self):
        Seen.sampler = self
        return glance(self)

    Channel.receive, StepSampler.glance = told, blind
    model.forward = step
    return model
