"""How the processes of a run talk: typed messages, one JSON line each, over a Unix socket."""
