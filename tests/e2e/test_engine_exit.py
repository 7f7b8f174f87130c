"""A program that ends while the model runs, without closing the engine: its exit code is its own, not SIGABRT's."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_BF16 = "this processor has no bf16"  # said of an artifact for OpenVINO, on some processors
BEGINNING = """
import signal, sys, threading, time
from polyhead import Engine

class Slow:
    def __del__(self):
        time.sleep(0.3)  # the interpreter is still ending when a run comes back that no one ended

slow = Slow()
engine = Engine.load(sys.argv[1])
texts = ["the cat sat on the mat and looked at the dog " * 30] * 400

def wait_for_runs():
    while not engine._runner.batcher.queued_texts:
        time.sleep(0.01)
    time.sleep(0.1)
"""
INTERRUPTED = """
def interrupt():
    wait_for_runs()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script's shell began in the background
threading.Thread(target=interrupt).start()
try:
    engine.encode(texts)
except KeyboardInterrupt:
    sys.exit(3)
"""
LEFT = """
threading.excepthook = print
threading.Thread(target=engine.encode, args=(texts,), daemon=True).start()
wait_for_runs()
sys.exit(3)
"""


@pytest.mark.parametrize("ending", [INTERRUPTED, LEFT], ids=["interrupted", "left"])
def test_a_program_that_ends_during_a_run_ends_as_it_means_to(engine_artifact: Path, ending: str) -> None:
    command = [sys.executable, "-W", "error", "-c", BEGINNING + ending, str(engine_artifact)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own program
    said = [line for line in ended.stderr.splitlines() if not line.startswith(NO_BF16)]
    assert (ended.returncode, said) == (3, [])
