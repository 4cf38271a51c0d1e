"""For vendors: a new package to begin with, and the checks that every plugin is held against.

``scaffold`` writes the package. ``catalogue`` names the checks, ``checks`` holds them, ``examine``
has them done in a process of their own (``checker``), ``conformance`` makes tests of them.
"""
