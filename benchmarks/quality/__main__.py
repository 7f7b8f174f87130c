"""What do a precision, vectors in fewer bits and pruned heads cost in quality, and what do pruned heads bring?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.quality", ("formats", "pairs", "pruning"))
