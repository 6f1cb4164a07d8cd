"""How much a worker claims, from which queue, and where a claim begins to look."""

from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks.broker.lane import Lane, share
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.store.turns import Want

SPAN_S, MOST = 0.05, 400


def lane(queue_id: int = 1) -> Lane:
    return Lane(f"q{queue_id}", queue_id, ShelfSpec(queue_id))


def test_nothing_is_claimed_ahead_before_a_run_time_is_known() -> None:
    assert lane().ahead(8, SPAN_S, MOST) == 0


def test_slow_work_is_not_claimed_ahead_and_quick_work_is() -> None:
    slow, quick, quickest = lane(), lane(), lane()
    slow.measure(1.0)
    quick.measure(0.01)
    quickest.measure(0.0)

    assert slow.ahead(1, SPAN_S, MOST) == 0
    assert quick.ahead(1, SPAN_S, MOST) == 5
    assert quickest.ahead(1, SPAN_S, MOST) == MOST


@given(st.integers(1, 64), st.floats(0, 10, allow_nan=False))
def test_what_is_claimed_ahead_finishes_within_the_span(threads: int, mean_s: float) -> None:
    one = lane()
    one.measure(mean_s)

    ahead = one.ahead(threads, SPAN_S, MOST)

    assert 0 <= ahead <= MOST
    assert ahead * mean_s <= threads * SPAN_S * 1.001 or mean_s < 1e-6


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 100))
def test_free_threads_are_shared_evenly_and_all_of_them(free: int, count: int, turn: int) -> None:
    lanes = [lane(queue_id) for queue_id in range(count)]

    wants = share(lanes, free, {}, turn)

    limits = [want.limit for want in wants]
    assert sum(limits) == max(free, 1)
    assert max(limits) - min(limits) <= 1
    assert len(limits) == min(max(free, 1), count)


def test_what_one_lane_looks_ahead_keeps_no_other_from_the_threads() -> None:
    lanes, aheads = [lane(queue_id) for queue_id in range(3)], {0: 40}

    first_of = {turn: share(lanes, 0, aheads, turn)[0] for turn in range(3)}

    assert [(want.queue_id, want.limit) for want in first_of.values()] == [(0, 40), (1, 1), (2, 1)]


def test_another_queue_begins_each_turn_so_none_starves() -> None:
    lanes = [lane(queue_id) for queue_id in range(3)]

    assert [share(lanes, 1, {}, turn)[0].queue_id for turn in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_full_claim_moves_the_floor_and_a_short_one_looks_from_the_start() -> None:
    one = lane()

    assert one.note(one.want(2), [5, 7], now=100.0, cost_s=0.0)
    assert (one.floor, one.has_more) == (7, True)
    assert not one.note(one.want(2), [9], now=100.0, cost_s=0.0)
    assert (one.floor, one.has_more) == (0, True)  # there may be some below
    assert not one.note(one.want(2), [], now=100.0, cost_s=0.0)
    assert (one.floor, one.has_more) == (0, False)


def test_a_wake_up_during_a_claim_is_about_the_next_one() -> None:
    one = lane()
    asked = one.want(2)

    one.wake()
    one.note(asked, [], now=100.0, cost_s=0.0)

    assert one.has_more


def test_the_floor_is_dropped_now_and_then_and_with_every_wake_up() -> None:
    one = lane()
    one.note(Want(1, 1, 0), [5], now=100.0, cost_s=0.0)

    one.note(Want(1, 1, 5), [6], now=100.1, cost_s=0.0)
    assert one.floor == 6
    one.note(Want(1, 1, 6), [7], now=100.3, cost_s=0.0)
    assert one.floor == 0
    one.note(Want(1, 1, 0), [8], now=100.3, cost_s=0.0)
    one.note(Want(1, 1, 8), [9], now=101.0, cost_s=0.1)  # a look that costs 100 ms is made every 2 s
    assert one.floor == 9
    one.wake()
    assert one.floor == 0
