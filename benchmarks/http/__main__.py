"""What do clients get over HTTP, and what does it cost?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.http", ("closed", "open", "storm", "cost", "gzip", "versions"))
