"""Job files that start the ranks of a run: llmb writes a file, a scheduler runs the file.

``job`` holds nodes, ranks and arguments; ``site`` reads a cluster's TOML file; ``scripts`` writes
shell scripts; ``kubernetes`` writes YAML; ``kinds`` lists the kinds of job files.
"""
