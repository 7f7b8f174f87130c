"""How the threads of torch wait for each other. It knows nothing of torch, which reads this when it is imported."""

import os


def wait_asleep() -> None:
    """Has torch's OpenMP threads sleep between products instead of spinning; to be called before torch is imported.

    Verification runs torch and ONNX Runtime in one process, each with a thread a core. Where the cores are wanted by
    others too, threads that spin keep those from running that they wait for: on two cores that eight to twelve others
    wanted, the default model's export took 385 and 220 s with them and 91 and 40 s without, 80 and 25 s of processor
    time. Who sets the variable knows better.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
