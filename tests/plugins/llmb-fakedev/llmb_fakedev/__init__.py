"""A vendor's package for the fake device, as short as a working one can be."""
