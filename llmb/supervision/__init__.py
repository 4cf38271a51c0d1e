"""The stations of the supervisor's line: negotiate, search, stream, assemble. Trusted, no torch."""
