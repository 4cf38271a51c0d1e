"""Bundles: making a submission, and checking one. No torch, no plugin, no first path."""
