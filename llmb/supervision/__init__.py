"""The steps of the supervisor, such as negotiate, run phases, stream and assemble.

The package is trusted and imports no torch.
"""
