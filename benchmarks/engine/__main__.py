"""How fast is the engine without HTTP?"""

from benchmarks.lib.command import choose

if __name__ == "__main__":
    choose(__doc__, "benchmarks.engine", ("rates", "stages", "training", "transformers"))
