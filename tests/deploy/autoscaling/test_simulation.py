"""What the manifests' rules do under load, simulated; and what the queue alone as a trigger would do."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

from deploy.autoscaling.__main__ import main
from deploy.autoscaling.replicas import CPU, GPU, Machine
from deploy.autoscaling.rules import Rules, cpu_only, keda, keda_gpu, read_scaled_object
from deploy.autoscaling.simulation import Report, Simulation
from deploy.autoscaling.traces import MINUTE, TRACES

QUEUE_ALONE = Path(__file__).parent / "queue_alone.yaml"
SETTINGS: dict[str, tuple[Callable[[], Rules], Machine]] = {
    "autoscale": (keda, CPU),
    "autoscale-hpa": (cpu_only, CPU),
    "autoscale-gpu": (keda_gpu, GPU),
}
SPIKE_START, SPIKE_END = 5 * MINUTE, 15.5 * MINUTE

each_setting = pytest.mark.parametrize("name", SETTINGS)


@cache
def simulate(name: str, load: str) -> Report:
    rules, machine = SETTINGS[name]
    return Simulation(rules(), machine, TRACES[load]).run()


def test_the_queue_alone_lets_replicas_come_and_go() -> None:
    """Ten replicas, 80 % busy, have an empty queue: too many, by that rule."""
    report = Simulation(read_scaled_object(QUEUE_ALONE), CPU, TRACES["steady"]).run()
    assert report.turns() >= 6
    assert min(row.ready for row in report.rows) <= 6
    assert report.refused_share() > 0.01


def test_thresholds_of_a_cpu_would_not_suit_a_gpu() -> None:
    report = Simulation(keda(), GPU, TRACES["steady70"]).run()
    assert max(row.replicas for row in report.rows) == 10  # for the work of 3.5


@each_setting
@pytest.mark.parametrize("load", ["steady", "steady70"])
def test_a_steady_load_is_left_alone(name: str, load: str) -> None:
    report = simulate(name, load)
    assert {row.replicas for row in report.rows} == {TRACES[load].start}
    assert report.refused_share() == 0
    assert max(row.p99 for row in report.rows) < 0.1


@each_setting
@pytest.mark.parametrize("load", ["ramp", "sawtooth"])
def test_a_load_that_rises_is_followed_without_a_refusal(name: str, load: str) -> None:
    report = simulate(name, load)
    assert report.refused_share() == 0
    assert max(row.p99 for row in report.rows) < 0.1


@each_setting
def test_a_ramp_needs_no_way_back(name: str) -> None:
    assert simulate(name, "ramp").turns() == 0


@pytest.mark.slow
@each_setting
def test_a_day_goes_up_once_and_down_once(name: str) -> None:
    report = Simulation(SETTINGS[name][0](), SETTINGS[name][1], TRACES["night"]).run()
    assert (report.turns(), report.refused_share()) == (1, 0)


@each_setting
def test_a_spike_is_followed_within_two_minutes(name: str) -> None:
    report = simulate(name, "spike")
    assert report.refused_share(SPIKE_START, SPIKE_END) < 0.05
    assert report.refused_share(SPIKE_START + 2 * MINUTE, SPIKE_END) == 0
    assert report.turns() == 1


def test_seeds_differ_and_one_seed_does_not() -> None:
    one, again, other = (Simulation(keda(), CPU, TRACES["steady70"], seed=seed).run().rows for seed in (0, 0, 1))
    assert one == again != other


def test_command_prints_a_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "autoscaling.png"
    assert main(["--loads", "steady70", "--compare", str(QUEUE_ALONE), "--picture", str(picture)]) == 0
    head, *lines, note = capsys.readouterr().out.splitlines()
    assert head.split() == ["rules", "load", "replicas", "turns", "refused", "worst", "p99"]
    assert [line.split()[0] for line in lines] == ["queue_alone", *SETTINGS]
    assert note == "autoscale-gpu: what one replica does is assumed, not measured"
    with Image.open(picture) as drawn:
        assert drawn.width > drawn.height  # a row for the one load
