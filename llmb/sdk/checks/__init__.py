"""The checks, one function each, by subject: ``catalogue`` says what they claim and in which order.

A function returns what was seen, or raises ``CheckError`` or ``SkipError``.
"""
