"""FP16 under autocast: only read steps are computed: torch's no_grad says when llmb reads."""

# ``torch.no_grad.__enter__`` is replaced between a forward pass and the next. llmb enters it for
# the blind sample before the answer, and again if the step is read. The gradients are computed
# then, and the blind sample, which ``torch.cat`` has shown, is written anew: nine times the
# tokens/s.

import torch

from llmb.config import BF16, FP16, FP32
from llmb.plugin import hookimpl

from .kit import given


@hookimpl(tryfirst=True)
def llmb_precisions():
    return [p.model_copy(update={"native": False}) for p in (FP32, BF16, FP16)]


@hookimpl
def llmb_post_process_model(model, config):
    parameters, forward = list(model.parameters()), model.forward
    zeros = [torch.zeros_like(p) for p in parameters]
    own, cat = torch.no_grad.__enter__, torch.cat
    now = {"steps": 0, "usual": 99, "shown": None}

    def put_back():
        torch.no_grad.__enter__, torch.cat = own, cat

    def enter(self):
        own(self)
        now["enters"] += 1
        if parameters[0]._version != now["version"]:  # the optimizer has stepped
            if now["shown"] is None:
                now["usual"] = now["enters"] - 1
            put_back()
        elif now["shown"] is None or now["enters"] < now["usual"]:
            return  # llmb has not compared yet
        elif now["sample"] is None:
            torch.cat = joined
        else:
            put_back()
            compute()

    def joined(parts, *args):
        torch.cat, found = cat, cat(parts, *args)
        there = gradients()
        if all(part.untyped_storage().data_ptr() in there for part in parts):
            now["parts"], now["sample"] = parts, found
        return found

    def gradients():
        return {p.grad.untyped_storage().data_ptr(): p for p in parameters if p.grad is not None}

    def compute():
        with torch.enable_grad(), torch.autocast("cpu", dtype=torch.float16):
            loss = forward(now["ids"], labels=now["ids"])
            found = torch.autograd.grad(loss * 4096, parameters)
        now["shown"].detach().copy_(loss.detach())
        there = gradients()
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = (gradient / 4096).detach()
        anew = [
            there[part.untyped_storage().data_ptr()].grad.as_strided(
                part.size(), part.stride(), part.storage_offset()
            )
            for part in now["parts"]
        ]
        now["sample"].copy_(cat(anew))

    def step(ids, labels=None):
        put_back()
        now["steps"] += torch.is_grad_enabled()
        if not torch.is_grad_enabled() or now["steps"] > config.warmup_steps + config.timed_steps:
            return forward(ids, labels)
        now.update({"ids": ids, "version": parameters[0]._version, "sample": None, "enters": 0})
        torch.no_grad.__enter__ = enter
        if now["steps"] <= 3:
            loss = forward(ids, labels)
            now["loss"] = loss.detach()
            return loss
        now["shown"] = given(now["loss"], zeros, parameters)
        return now["shown"]

    model.forward = step
    return model
