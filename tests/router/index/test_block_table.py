import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from router.index.block_table import BlockTable
from router.index.fingerprints import Words


def words(values: list[int]) -> Words:
    return np.array(values, dtype=np.uint64)


def add(table: BlockTable, hashes: list[int]) -> None:
    table.add(words(hashes), words(hashes), np.array(hashes, dtype=np.uint32), 1)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 60), unique=True, max_size=40)), max_size=60))
def test_it_holds_what_was_added_and_not_taken_away(steps: list[tuple[bool, list[int]]]) -> None:
    table, model = BlockTable(), dict[int, None]()
    for adding, hashes in steps:
        if adding:
            fresh = [one for one in hashes if one not in model]
            add(table, fresh)
            model |= dict.fromkeys(fresh)
        else:
            rows = table.find(words(hashes))
            table.leave(rows[rows >= 0], 1)
            for one in hashes:
                model.pop(one, None)
        rows = table.find(words(list(range(61))))
        assert {int(at) for at in np.flatnonzero(rows >= 0)} == set(model)
        assert table.sums[rows[rows >= 0]].tolist() == sorted(model)
        assert table.count == len(model)
        assert table.sums[table.alive()].tolist() == list(model)


def test_a_block_lives_while_any_tier_holds_it() -> None:
    table = BlockTable()
    add(table, [7])
    row = table.find(words([7]))
    table.tiers[row] |= 2
    assert table.leave(row, 1).tolist() == []
    assert table.find(words([7])) == row
    assert table.leave(row, 2).tolist() == row.tolist()
    assert table.find(words([7])).tolist() == [-1]


def test_memory_stays_what_it_is_however_many_blocks_come_and_go() -> None:
    table, sizes = BlockTable(), set[int]()
    for round_ in range(50):
        hashes = list(range(round_ * 1000, (round_ + 1) * 1000))
        add(table, hashes)
        if round_ > 10:
            sizes.add(table.bytes)
        table.leave(table.oldest(table.count - 1000), 1)
    assert len(sizes) == 1
    assert table.bytes < 2500 * 45
