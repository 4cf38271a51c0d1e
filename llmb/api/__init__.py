"""llmb from Python: ``llmb.run``, ``load``, ``compare`` and ``verify``, and their results.

``import llmb`` imports no module of this folder: ``llmb/__init__.py`` imports a name, such as
``llmb.run``, at the first use of the name.
"""
