"""What does a graphics card give?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.gpu", ("rates",))
