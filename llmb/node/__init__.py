"""The examination of a new node: every device alone, all at once, as ranks of one run; yes or no.

What is run are runs like any other, in processes of their own, and each leaves its run directory.
"""
