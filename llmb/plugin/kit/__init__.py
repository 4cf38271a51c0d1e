"""Optional building blocks for vendors' plugins; the code names no vendor.

``accelerator``: a ``Backend`` over ``torch.accelerator``. ``compiling``: ``torch.compile`` in
place. ``attention``: the choice of a kernel. ``formats``: TF32 and FP8.
"""
