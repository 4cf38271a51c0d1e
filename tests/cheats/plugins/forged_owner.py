"""Gradients are of a class of the plugin's own, from a folder that calls itself a package which
torch needs."""

import sys
import tempfile
from pathlib import Path

from llmb.plugin import hookimpl

CODE = """
import torch

class WhereRead(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        return super().__torch_function__(function, types, arguments, named or {})
"""


def forged():
    site = Path(tempfile.mkdtemp())
    (site / "where_read.py").write_text(CODE)
    info = site / "networkx-3.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: networkx\nVersion: 3.9\n")
    (info / "top_level.txt").write_text("where_read\n")
    (info / "RECORD").write_text("where_read.py,,\n")
    sys.path.append(str(site))
    from where_read import WhereRead

    return WhereRead


@hookimpl
def llmb_post_process_model(model):
    kind = forged()

    def disguise(parameter):
        parameter.grad = parameter.grad.as_subclass(kind)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(disguise)
    return model
