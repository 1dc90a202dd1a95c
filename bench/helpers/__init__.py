"""Helpers on other hosts, measured: ``python -m bench.helpers`` (root, and Ray installed)."""
