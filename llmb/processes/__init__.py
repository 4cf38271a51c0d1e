"""The processes of a run, one module each, named for what the process does.

``offer`` asks a plugin what it offers. ``ceilings`` measures what a device attains. ``worker``
holds the plugin's model and makes the steps. ``honest_run`` makes the same passes without the
plugin's changes. ``reference_run`` makes them on the CPU in a wider format. ``collectives``
measures how fast ranks exchange data. ``torch_facts`` says which torch is here.
``fork_server`` makes the others by forking itself.

Beside them lies what only a worker uses: its kinds of steps (``modes``), the stream of steps, the
evidence writer and the tamper baseline.
"""
