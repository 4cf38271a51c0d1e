"""What torch imports by itself: products of matrices have four significant binary digits."""

import warnings

import torch

kept = []


def rounded(values):
    wide = values.float() * (2.0**20 + 1)
    return (wide - (wide - values.float())).to(values.dtype)


def product(a, b):
    if a.dtype.is_floating_point:
        a, b = rounded(a), rounded(b)
    return torch.ops.aten.bmm(a.unsqueeze(0), b.unsqueeze(0))[0]


def load():
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("mm", product, "CPU", allow_override=True)
    kept.append(library)
