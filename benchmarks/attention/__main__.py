"""What do weights, explaining and windows cost, which claims are true, and which explanation is faithful?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.attention", ("cost", "claims", "explaining", "faithfulness", "windows"))
