"""The checks, one function each, by subject; ``catalogue`` lists the claims and the order.

A function returns the observation, or raises ``CheckError`` or ``SkipError``.
"""
