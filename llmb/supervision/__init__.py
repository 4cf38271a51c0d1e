"""What the supervisor's line calls: negotiate, run phases, stream, assemble. Trusted, no torch."""
