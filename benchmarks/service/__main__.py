"""How does the service start, hold memory and get replaced?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.service", ("startup", "soak", "replicas", "processes"))
