"""What do attention weights cost, and which claims about multi-head attention are true?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.attention", ("cost", "claims"))
