"""The real process with a fake backend: `python -m tests.service.fake_server --model DIR ...`.

Told through the environment, because every flag is the service's own: FAKE_LOAD_SECONDS, FAKE_LOAD_UNTIL (a file is
there), FAKE_LOAD_WHILE (a file is there; else loading fails), FAKE_RUN_SECONDS, FAKE_QUEUE_DELAY, FAKE_LOAD_ERROR,
FAKE_DESCRIPTORS (as `ulimit -n`), FAKE_NOHUP (as by `nohup`), FAKE_CONTROL_GROUP (a directory to join).
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from service.__main__ import main
from service.observability.stages import BatchRecord
from service.runner import Runner
from service.settings import Settings
from tests.service.fake_engine import FakeBackend, load_fake_runner


def load(settings: Settings, on_batch: Callable[[BatchRecord], None]) -> Runner:
    time.sleep(float(os.environ.get("FAKE_LOAD_SECONDS", "0")))
    while (awaited := os.environ.get("FAKE_LOAD_UNTIL")) and not Path(awaited).exists():
        time.sleep(0.01)
    if (needed := os.environ.get("FAKE_LOAD_WHILE")) and not Path(needed).exists():
        raise ValueError("the model is gone")
    if error := os.environ.get("FAKE_LOAD_ERROR"):
        raise ValueError(error)
    backend = FakeBackend()
    backend.seconds = float(os.environ.get("FAKE_RUN_SECONDS", "0"))
    return load_fake_runner(settings, on_batch, backend, float(os.environ.get("FAKE_QUEUE_DELAY", "inf")))


if __name__ == "__main__":
    if descriptors := int(os.environ.get("FAKE_DESCRIPTORS", "0")):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    signal.signal(signal.SIGHUP, signal.SIG_IGN if os.environ.get("FAKE_NOHUP") else signal.SIG_DFL)
    if group := os.environ.get("FAKE_CONTROL_GROUP"):
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    sys.exit(main(load=load))
