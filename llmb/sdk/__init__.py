"""For vendors: a new package to start from, and the checks that every plugin must pass.

``scaffold`` writes the package. ``catalogue`` names the checks, ``checks`` implements the checks,
``examine`` runs the checks in a separate process (``checker``), ``conformance`` makes pytest tests.
"""
