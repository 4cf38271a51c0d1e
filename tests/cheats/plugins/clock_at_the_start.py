"""The package ships a ``sitecustomize``, which halves the clock and the times of the supervisor."""
