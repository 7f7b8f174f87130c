"""How torch's threads wait for each other. It does not import torch, which reads the setting when it is imported."""

import os


def wait_asleep() -> None:
    """Has torch's OpenMP threads sleep between products instead of spinning; to be called before torch is imported.

    Verification runs torch and ONNX Runtime in one process, each with a thread a core. On a busy machine a thread that
    spins takes the core from the thread that it waits for. On two cores shared with eight to twelve other processes
    the default model's export took 385 and 220 s with spinning, 91 and 40 s without. A value set by the user is kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
