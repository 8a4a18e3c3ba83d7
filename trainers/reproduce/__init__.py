"""Ledger of the reproduced results as data, and the program that reproduces them; see `rows.py`."""
