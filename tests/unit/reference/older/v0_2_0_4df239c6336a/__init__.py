"""What cannot change: model, optimizer, train loop and data. torch and the standard library only.

Every Python file of this folder is pinned by digest in ``PINS.sha256``; see ``pins.py``.
"""
