"""What each process gets, for machines that are not this one."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from model.artifact import write_manifest
from service.processes import shares
from service.processes.shares import cores_of, processes_of, share_of
from service.settings import Settings, read_settings
from tests.service.fake_engine import make_manifest, write_fake_artifact


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Twelve cores, without a quota."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setattr(shares, "cgroup_quota", lambda: None)
    monkeypatch.setattr(shares, "core_limit", lambda: 12.0)
    monkeypatch.setattr(shares, "usable_cores", lambda: 12)
    return monkeypatch


def settings_of(artifact: Path, *flags: str) -> Settings:
    return read_settings(["--model", str(artifact), *flags])


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 12])
def test_every_core_is_one_process_s(machine: pytest.MonkeyPatch, fake_artifact: Path, processes: int) -> None:
    cores = [cores_of(index, processes) for index in range(processes)]
    assert sorted(core for part in cores for core in part or []) == list(range(12))
    sizes = [len(part or []) for part in cores]
    assert max(sizes) - min(sizes) <= 1
    workers = [share_of(settings_of(fake_artifact), index, processes).workers for index in range(processes)]
    assert workers == sizes


def test_processes_are_tied_to_no_cores_where_that_could_not_be_even(machine: pytest.MonkeyPatch) -> None:
    assert cores_of(0, 13) is None
    machine.setattr(shares, "cgroup_quota", lambda: 6.0)
    assert cores_of(0, 2) is None


def test_workers_share_a_quota(machine: pytest.MonkeyPatch, fake_artifact: Path) -> None:
    machine.setattr(shares, "cgroup_quota", lambda: 5.5)
    machine.setattr(shares, "core_limit", lambda: 5.5)
    settings = settings_of(fake_artifact)
    assert [share_of(settings, index, 2).workers for index in range(2)] == [2, 3]
    assert [share_of(settings, index, 8).workers for index in range(8)] == [1] * 8
    assert share_of(settings_of(fake_artifact, "--intra-op-threads", "2"), 1, 2).workers == 1
    assert share_of(settings_of(fake_artifact, "--workers", "7"), 1, 2).workers == 7


def test_limits_on_all_requests_are_shared_and_those_on_one_are_not(fake_artifact: Path) -> None:
    share = share_of(settings_of(fake_artifact), 0, 4)
    whole = settings_of(fake_artifact)
    assert share.max_connections == whole.max_connections // 4
    assert share.max_held_body_bytes == whole.max_held_body_bytes // 4
    assert share.max_held_answer_bytes == whole.max_held_answer_bytes // 4
    assert share.max_queue_tokens == whole.max_request_tokens  # a quarter would take no largest request
    assert share.max_body_bytes == whole.max_body_bytes
    assert share_of(settings_of(fake_artifact), 0, 100).max_held_body_bytes == whole.max_body_bytes


@pytest.mark.parametrize(
    ("precision", "flags", "expected"), [("fp32", (), 2), ("int8", (), 3), ("fp32", ("--provider", "cuda"), 1)]
)
def test_the_number_is_chosen_by_cores_and_precision(
    machine: pytest.MonkeyPatch, tmp_path: Path, precision: str, flags: tuple[str, ...], expected: int
) -> None:
    directory = write_fake_artifact(tmp_path / "artifact")
    write_manifest(directory, replace(make_manifest(directory), precision=precision))
    assert processes_of(settings_of(directory, "--processes", "0", *flags)) == expected


def test_one_process_is_the_default_and_two_cores_are_one_s(machine: pytest.MonkeyPatch, fake_artifact: Path) -> None:
    assert processes_of(settings_of(fake_artifact)) == 1
    assert processes_of(settings_of(fake_artifact, "--processes", "7")) == 7
    machine.setattr(shares, "usable_cores", lambda: 2)
    assert processes_of(settings_of(fake_artifact, "--processes", "0")) == 1


def test_an_artifact_that_is_none_is_left_to_one_process_to_complain_of(tmp_path: Path) -> None:
    assert processes_of(settings_of(tmp_path, "--processes", "0")) == 1
