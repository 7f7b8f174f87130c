"""Commands that measure, a question each: `python -m benchmarks COMMAND QUESTION`; `--help` lists them.

Every question prints tables, then the machine and how many cores other programs used meanwhile, and one line of JSON
last. Rates that are compared come from one run and are taken in turns, so that a drift of the machine affects all of
them. Shared parts are in `benchmarks/lib`, the other engines in `benchmarks/peers`.
"""
