"""Bundles: what is handed in, and how a stranger checks it. No torch, no plugin, no first path."""
