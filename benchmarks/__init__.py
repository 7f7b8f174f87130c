"""Scripts that measure, one question each: `python -m benchmarks.NAME --help` from the project's root.

Every script prints what it measured as a table, then the machine, and one line of JSON last. Rates that are compared
come from one run, taken in turns, so that whatever else the machine does hits them alike.
"""
