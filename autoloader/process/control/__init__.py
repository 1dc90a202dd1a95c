"""Puts a running pipeline under the controller: observes it, applies what was decided.

Not here: deciding (``controller``), running (``pipeline``).
"""
