from h3serve.service.jobs.job import FINAL, LEGAL, State


def test_every_state_has_a_row_and_no_move_leaves_an_end() -> None:
    assert set(LEGAL) == set(State)
    for state in (State.FAILED, State.CANCELLED, State.EXPIRED):
        assert not LEGAL[state]
    assert LEGAL[State.COMPLETED] == {State.EXPIRED}


def test_the_three_ends_are_reached_only_from_waiting_states() -> None:
    for end in (State.COMPLETED, State.FAILED, State.CANCELLED):
        assert not any(end in LEGAL[source] for source in FINAL)
        assert end in LEGAL[State.IN_PROGRESS]
    assert State.COMPLETED not in LEGAL[State.QUEUED]
