"""Communication between the processes of a run: typed messages as JSON lines over a Unix socket."""
