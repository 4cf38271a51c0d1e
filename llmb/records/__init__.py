"""What a run leaves behind: typed, versioned, canonical, and read back without trusting it."""
