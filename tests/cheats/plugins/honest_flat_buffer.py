"""All parameters are views of one buffer, as sharded training stores them."""

import torch

from llmb.plugin import hookimpl


@hookimpl
def llmb_post_process_model(model):
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters])
    parts = flat.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.data = part.view(parameter.shape)
    return model
