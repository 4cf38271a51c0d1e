"""Job files that start the ranks of one run: llmb writes them, a scheduler runs them.

``job`` says what is asked for, ``site`` what a cluster wants to be told, ``scripts`` writes shell
scripts, ``kubernetes`` writes YAML, ``kinds`` lists them all.
"""
