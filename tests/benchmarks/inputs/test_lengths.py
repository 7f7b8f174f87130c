from benchmarks.inputs.lengths import histogram


def test_the_histogram_counts_every_text_once() -> None:
    table = histogram("short", [7, 8, 31, 32, 511, 512, 9000])
    assert {row["tokens"]: row["texts"] for row in table.rows} == {
        "0-7": 1,
        "8-15": 1,
        "16-31": 1,
        "32-63": 1,
        "64-127": 0,
        "128-255": 0,
        "256-511": 1,
        "512 and more": 2,
    }
