"""The examination of a new node: every device alone, all at once, as ranks of one run; yes or no.

Every measurement is an ordinary ``llmb run`` in a separate process, and leaves a run directory.
"""
