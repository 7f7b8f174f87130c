"""What do a precision, vectors in fewer bits, and pruned or healed heads cost in quality, and what do they bring?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.quality", ("formats", "healing", "pairs", "pruning"))
