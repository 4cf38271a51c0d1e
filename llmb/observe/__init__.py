"""Observers that record evidence in the worker for the audit; nothing is judged here."""
