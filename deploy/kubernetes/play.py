"""Really runs what an overlay renders, with podman, and asks it for an embedding: `make play`, as root.

There is no API server here, so this shows that the Deployment's containers start and answer under the settings, users,
mounts and limits that stand in it. What podman cannot do is taken out: probes (there is no kubelet to ask), the
preStop hook, and with them the order of a rollout; services, policies and scalers. `make container-check` builds
the image and keeps it where this looks for it.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

KUBECTL = Path(__file__).parents[2] / ".tools/bin/kubectl"
IMAGE, STORE = "localhost/polyhead:test", Path(tempfile.gettempdir()) / "check-container"  # of `make container-check`
PORT = 18182
READY_LIMIT = 60.0  # seconds
PLAYED = ("ConfigMap", "Deployment")
NOT_PLAYED = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle")

LOOK = """
import os, pathlib
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
print("user", os.getuid(), *(f"{name} {status[name].strip()}" for name in ("CapEff", "NoNewPrivs", "Seccomp")))
print("root file system", "read-only" if os.statvfs("/").f_flag & os.ST_RDONLY else "WRITABLE")
print(*(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("POLYHEAD_")))
"""

Resource = dict[str, Any]


def adapt(resources: Sequence[Resource], volumes: Path) -> list[Resource]:
    """The parts that podman runs, on the host's network and with directories for volumes that are empty at first."""
    played = [resource for resource in resources if resource["kind"] in PLAYED]
    configs = {item["metadata"]["name"]: item["data"] for item in played if item["kind"] == "ConfigMap"}
    ports = {"POLYHEAD_PORT": str(PORT), "POLYHEAD_ADMIN_PORT": str(PORT + 1)}
    for resource in played:
        resource["metadata"].pop("namespace", None)
        if resource["kind"] == "ConfigMap":  # podman prefers its values to the container's own
            resource["data"] |= {name: value for name, value in ports.items() if name in resource["data"]}
        if resource["kind"] == "Deployment":
            resource["spec"]["replicas"] = 1
            _adapt_pod(resource["spec"]["template"]["spec"], ports, volumes, configs)
    return played


def _adapt_pod(pod: Resource, ports: Mapping[str, str], volumes: Path, configs: Mapping[str, Any]) -> None:
    pod.pop("topologySpreadConstraints", None)
    pod["hostNetwork"] = True
    pod["restartPolicy"] = "Never"  # podman would restart an init container that has done its work, too
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        container["image"] = IMAGE
        container.pop("ports", None)
        for name in NOT_PLAYED:
            container.pop(name, None)
    pod["containers"][0].setdefault("env", []).extend({"name": name, "value": value} for name, value in ports.items())
    user = pod["securityContext"]["runAsUser"]
    for volume in pod.get("volumes", ()):
        if volume.pop("emptyDir", None) is not None:  # what fsGroup does, podman does not
            directory = volumes / volume["name"]
            directory.mkdir()
            os.chown(directory, user, user)
            volume["hostPath"] = {"path": str(directory), "type": "Directory"}
    for container in pod.get("initContainers", ()):  # `$(NAME)` in a command, as a kubelet replaces it
        sources = (source["configMapRef"]["name"] for source in container["envFrom"])
        values = {name: value for source in sources for name, value in configs[source].items()}
        limit: str = pod["containers"][0]["resources"]["limits"]["memory"]  # the one value that comes from a resource
        memory = str(int(limit[:-2]) * {"Mi": 2**20, "Gi": 2**30}[limit[-2:]])
        values |= {entry["name"]: memory for entry in container.pop("env", ())}
        for name, value in values.items():
            container["command"] = [part.replace(f"$({name})", value) for part in container["command"]]


@contextlib.contextmanager
def played(podman: Sequence[str], resources: Sequence[Resource]) -> Iterator[None]:
    """Runs them until the block ends."""
    text = yaml.safe_dump_all(resources)
    command = [*podman, "kube", "play", "--network", "host", "-"]
    try:
        subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - podman
        yield
    finally:
        subprocess.run([*podman, "kube", "down", "-"], input=text, text=True, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - podman


def wait_until_ready(address: str) -> float:
    """Seconds until `/readyz` answered 200.

    Raises:
        TimeoutError: it never did.
    """
    began = time.monotonic()
    while time.monotonic() - began < READY_LIMIT:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/readyz", timeout=2):  # noqa: S310 - our own
            return time.monotonic() - began
        time.sleep(0.05)
    raise TimeoutError(f"{address} was not ready within {READY_LIMIT:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Renders, runs, asks, and says what it saw."""
    parser = argparse.ArgumentParser(description="Run what an overlay renders, with podman.")
    parser.add_argument("overlay", type=Path, help="a folder with a kustomization")
    render = [KUBECTL, "kustomize", parser.parse_args(arguments).overlay]
    rendered = subprocess.run(render, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603 - kubectl
    os.environ["CONTAINERS_CONF"] = str(STORE / "containers.conf")
    places = ["--root", str(STORE / "root"), "--runroot", str(STORE / "run"), "--storage-driver", "overlay"]
    podman = ["podman", *places, "--cgroup-manager", "cgroupfs", "--events-backend", "file"]
    body = json.dumps({"inputs": "a text", "dimensions": 2, "attention": {"heads": [0], "queries": "cls"}}).encode()
    address = f"http://127.0.0.1:{PORT}"
    request = urllib.request.Request(f"{address}/encode", body, {"content-type": "application/json"})  # noqa: S310 - our own
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - the container's user has to reach what is in it
        adapted = adapt(list(yaml.safe_load_all(rendered)), Path(folder))
        (deployment,) = (resource for resource in adapted if resource["kind"] == "Deployment")
        container = deployment["spec"]["template"]["spec"]["containers"][0]["name"]
        look = [*podman, "exec", f"{deployment['metadata']['name']}-pod-0-{container}", "python", "-c", LOOK]
        with played(podman, adapted):
            seconds = wait_until_ready(address)
            with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - our own
                answer = json.load(response)
            seen = subprocess.run(look, capture_output=True, text=True, check=True).stdout  # noqa: S603 - podman
    sys.stdout.write(f"ready after {seconds:.1f} s; {answer['model']} answered {answer['embeddings']}\n{seen}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
