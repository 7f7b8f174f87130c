from polyhead.tune.layouts import Layout, Measurement, layouts, least_latency, most_throughput


def measured(layout: Layout, rate: float, latency: float) -> Measurement:
    return Measurement(layout, rate, 30 * rate, latency, 2 * latency, 0.1)


def test_shares_out_all_cores() -> None:
    assert layouts(1) == [Layout(1, 1, 1)]
    assert layouts(2) == [Layout(1, 2, 1), Layout(1, 1, 2), Layout(2, 1, 1)]
    assert len(layouts(64)) == 28
    assert {one.processes * one.workers * one.intra_op_threads for one in layouts(12)} == {12}
    assert len(set(layouts(12))) == len(layouts(12))


def test_recommends_the_best_of_each_kind() -> None:
    found = [measured(Layout(1, 4, 1), 900, 0.010), measured(Layout(1, 1, 4), 500, 0.004)]
    assert most_throughput(found) == Layout(1, 4, 1)
    assert least_latency(found) == Layout(1, 1, 4)


def test_more_processes_have_to_be_worth_it() -> None:
    one, two, four = (
        measured(Layout(count, 8 // count, 1), rate, 0.004) for count, rate in ((1, 985), (2, 1000), (4, 990))
    )
    assert most_throughput([four, two, one]) == one.layout
    assert least_latency([four, two, one]) == one.layout
    assert most_throughput([measured(one.layout, 960, 1), two]) == two.layout
