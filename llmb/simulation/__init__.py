"""Simulation of one rank of a large job: the real code on tensors without memory or values.

Example: rank 0 of a job of 1,024 ranks, in one process.
"""
