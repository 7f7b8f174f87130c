"""Which texts and networks do the other commands measure with?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.inputs", ("lengths", "network", "reranker"))
