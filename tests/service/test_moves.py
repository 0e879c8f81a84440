from h3serve.service.moves import FINAL, LEGAL, State, is_legal


def test_every_state_has_a_row_and_no_move_leaves_an_end() -> None:
    assert set(LEGAL) == set(State)
    for state in (State.FAILED, State.CANCELLED, State.EXPIRED):
        assert not LEGAL[state]
    assert LEGAL[State.COMPLETED] == {State.EXPIRED}


def test_the_three_ends_are_reached_only_from_waiting_states() -> None:
    for end in (State.COMPLETED, State.FAILED, State.CANCELLED):
        assert not any(is_legal(source, end) for source in FINAL)
        assert is_legal(State.IN_PROGRESS, end)
    assert not is_legal(State.QUEUED, State.COMPLETED)
