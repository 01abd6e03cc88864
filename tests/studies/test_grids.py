from polydice.studies.grids import for_difference, for_mean, whole_grids


def test_all_replicates_of_a_grid_have_the_same_folds() -> None:
    assert whole_grids([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]) == [
        [(0, 0), (0, 1), (1, 0), (1, 1)],
        [(0, 0), (1, 0), (2, 0)],
    ]
    assert whole_grids([(0, 0), (1, 1)]) == [[(0, 0)], [(1, 1)]]
    assert whole_grids([]) == []
    missing = {0: 4, 1: 0, 2: 4}  # of each seed, the fold that is not there
    grids = whole_grids([(seed, fold) for seed in missing for fold in range(5) if fold != missing[seed]])
    assert [(0, fold) for fold in range(4)] + [(2, fold) for fold in range(4)] in grids
    assert [(seed, fold) for seed in range(3) for fold in (1, 2, 3)] in grids


def test_a_mean_has_the_most_folds_and_a_difference_the_most_pairs() -> None:
    pairs = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert for_mean(pairs) == [(0, 0), (0, 1), (0, 2)]
    assert for_difference(pairs) == [(each, fold) for each in range(3) for fold in range(2)]
    assert for_mean([]) == for_difference([]) == []
