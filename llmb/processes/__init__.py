"""The processes of a run, one module each, named for what the process does.

``offer`` asks a plugin for its devices, formats and options. ``ceilings`` measures the peak rates
of a device. ``worker`` holds the plugin's model and makes the training steps. ``honest_run``
repeats the passes without the plugin's changes. ``reference_run`` repeats the passes on the CPU in
a wider format, for example float64. ``collectives`` measures how fast ranks exchange data.
``torch_facts`` reports the installed torch. ``fork_server`` makes the processes by forking itself.

The other modules serve a worker alone: the modes (kinds of steps), the stream of steps, the
evidence writer and the tamper baseline.
"""
