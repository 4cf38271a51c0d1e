"""Nothing is changed."""
