"""How does this project compare with others?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.peers", ("encode", "int8", "rerank"))
