"""What do a precision and pruned heads cost in quality, and what do pruned heads bring in speed?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.quality", ("pairs", "pruning"))
