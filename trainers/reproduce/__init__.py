"""The ledger of what was reproduced, as data, and the program that reproduces it: see `rows.py`."""
