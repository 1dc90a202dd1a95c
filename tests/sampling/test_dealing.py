"""Steps deal an epoch's positions whole, in equal numbers, and none of them empty."""

from hypothesis import given
from hypothesis import strategies as st

from autoloader.sampling.dealing import Deal, Ranks, Rounds, Steps

BATCHES = st.integers(1, 6)
WORLDS = st.integers(1, 5)
EPOCHS = st.integers(5, 90)


def deals(world_size: int, batch: int, drop_last: bool, epoch: int | None, *at: int) -> list[Deal]:
    return [
        Deal(Ranks(rank, world_size), batch, drop_last, epoch, *at) for rank in range(world_size)
    ]


@given(EPOCHS, BATCHES, WORLDS, st.booleans(), st.integers(0, 300), st.integers(0, 90))
def test_ranks_take_disjoint_parts_that_are_the_sequence_whole_over_several_epochs(
    epoch: int, batch: int, world_size: int, drop_last: bool, base: int, in_epoch: int
):
    in_epoch = min(in_epoch, epoch)
    every = deals(world_size, batch, drop_last, epoch, base, in_epoch, 7)
    at, due = base, epoch - in_epoch
    for number in range(7, 60):
        while (size := Steps(batch, world_size, drop_last).samples(due)) == 0:
            due += epoch
        assert every[0].step(number) == (at, at + size)
        for deal in every:
            start, stop = deal.positions(number)
            assert start == at
            assert 1 <= stop - start == deal.rows(number) <= batch
            assert drop_last is False or stop - start == batch
            at = stop
        due -= size


@given(BATCHES, WORLDS, st.integers(0, 1000))
def test_an_endless_sequence_is_dealt_in_full_steps(batch: int, world_size: int, step: int):
    for drop_last in (True, False):
        for deal in deals(world_size, batch, drop_last, None, 11):
            start = 11 + (step * world_size + deal.ranks.rank) * batch
            assert deal.positions(step) == (start, start + batch)


@given(EPOCHS, BATCHES, WORLDS, st.booleans(), st.lists(st.integers(1, 4), max_size=4))
def test_rounds_deal_every_batch_to_the_fillers_in_turn(
    epoch: int, batch: int, world_size: int, drop_last: bool, fillers: list[int]
):
    for deal in deals(world_size, batch, drop_last, epoch):
        rounds = Rounds(deal)
        number = before = 0
        for count in fillers:
            dealt = rounds.next(count, 20)
            assert len(dealt) == count
            samples = sum(stop - start for own in dealt for start, stop in own)
            assert (
                min(20 * count, before) <= samples < max(1, min(20 * count, before)) + batch * count
            )
            before += samples
            assert number > 0 or all(len(own) == 1 for own in dealt)
            for k in range(sum(map(len, dealt))):
                assert dealt[k % count][k // count] == deal.positions(number)
                number += 1
