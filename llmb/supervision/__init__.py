"""What the supervisor's line calls: negotiate, stations, stream, assemble. Trusted, no torch."""
