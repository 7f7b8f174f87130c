"""Children that stop answering, without processes."""

from unittest.mock import Mock

from service.processes.children import HUNG_LOOKS, SILENT_LOOKS, Children


def child(index: int) -> Mock:
    return Mock(index=index, state="ready", silence=0, takes_connections=True)


def make() -> tuple[Children, list[Mock]]:
    children, made = Children(2), [child(0), child(1)]
    for one in made:
        children.all.add(one)
        children.serving[one.index] = one
    return children, made


def last_told(one: Mock) -> dict[str, bool]:
    told: dict[str, bool] = one.describe_group.call_args.kwargs
    return told


def test_a_child_that_is_silent_is_told_of_and_then_killed() -> None:
    children, (silent, other) = make()
    for look in range(1, HUNG_LOOKS + 1):
        assert not silent.kill.called
        children.look()
        other.silence = 0  # it says that it is there
        is_fine = look < SILENT_LOOKS
        assert last_told(other) == {"is_ready": is_fine, "is_alive": is_fine}
    silent.kill.assert_called_once()
    assert not other.kill.called


def test_a_child_that_starts_is_given_its_time() -> None:
    children, (starting, _) = make()
    starting.state, starting.takes_connections = "starting", False
    for _ in range(2 * HUNG_LOOKS):
        children.look()
    assert not starting.kill.called
    assert not children.is_ready()


def test_ready_is_every_place_and_nothing_less() -> None:
    children, (first, second) = make()
    assert children.is_ready()
    assert children.remove(first)
    assert not children.is_ready()
    assert children.is_alive()
    assert last_told(second) == {"is_ready": False, "is_alive": True}
    children.all.add(first)
    children.serving[0] = first
    children.is_ending = True
    assert not children.is_ready()


def test_a_child_in_whose_place_another_serves_is_not_missed() -> None:
    children, _ = make()
    left = child(0)
    children.all.add(left)
    assert not children.remove(left)
    assert children.is_ready()
