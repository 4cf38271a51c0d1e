"""Building blocks that a vendor's plugin may use and need not: no vendor is named in them.

``accelerator``: a ``Backend`` over ``torch.accelerator``. ``compiling``: ``torch.compile`` in
place. ``attention``: the choice of a kernel. ``formats``: TF32 and FP8.
"""
