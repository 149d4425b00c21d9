import statistics

from varcon.runs import SPEED, Result, table


def test_the_table_has_mean_spread_and_cost():
    results = [
        Result("a", seed, {"kNN top-1": value, "minutes": 2.0, SPEED: 1000.0})
        for seed, value in enumerate((90.0, 92.0, 97.0))
    ]
    other = Result("b", 0, {"kNN top-1": 1.0, "own classifier": 5.0, "minutes": 2.0, SPEED: 1000.0})
    head, first, second, third = table([*results, other, Result("c", 0, failed="it diverged")], "method")
    assert head == ["method", "kNN top-1", "own classifier", "minutes a run", "data set images/s", "seeds"]
    assert first == ["a", f"93.00 ± {statistics.stdev((90.0, 92.0, 97.0)):.2f}", "", "2.00", "1,000", "3"]
    assert second == ["b", "1.00", "5.00", "2.00", "1,000", "1"]
    assert third == ["c", "", "", "", "", "0, 1 failed"]


def test_a_mean_over_fewer_runs_says_over_how_many():
    cost = {"minutes": 2.0, SPEED: 1000.0}
    results = [
        Result("a", 0, {"kNN top-1": 90.0, "Ward ARI": 0.5, **cost}),
        Result("a", 1, {"kNN top-1": 92.0, **cost}),
    ]
    _, row = table(results, "method")
    assert row[1:3] == ["91.00 ± 1.41", "0.500 (n = 1)"]
