"""Which cases this machine runs: an even split by estimate, and the cases asked for by id."""

from __future__ import annotations

from collections.abc import Sequence

from h3serve.core.errors import RequestError
from h3serve.guard.cases import Case


def split(cases: Sequence[Case], machines: int) -> list[list[Case]]:
    """Cases for each of `machines`: the longest estimate first, each to the least loaded machine.

    Every case lands on exactly one machine, and on the same one whenever it is asked again.
    """
    if machines < 1:
        raise RequestError("machines", machines, "at least 1")
    shares: list[list[Case]] = [[] for _ in range(machines)]
    loads = [0.0] * machines
    for case in sorted(cases, key=lambda case: (-case.estimate_s, case.id)):
        lightest = loads.index(min(loads))
        shares[lightest].append(case)
        loads[lightest] += case.estimate_s
    return shares


def share_of(cases: Sequence[Case], machine: int, machines: int) -> list[Case]:
    """The cases of machine number `machine`, counted from 1."""
    shares = split(cases, machines)
    if not 1 <= machine <= machines:
        raise RequestError("machine", machine, f"from 1 to {machines}")
    return shares[machine - 1]


def with_ids(cases: Sequence[Case], ids: Sequence[str]) -> list[Case]:
    """The named cases in their own order; all of them if none is named; an unknown id is an error."""
    known = [case.id for case in cases]
    for wanted in ids:
        if wanted not in known:
            raise RequestError("case-ids", wanted, f"one of {', '.join(known)}")
    return [case for case in cases if not ids or case.id in ids]


def machines_for(cases: Sequence[Case], ids: Sequence[str], machines: int) -> list[int]:
    """Numbers, counted from 1, of the machines that hold one of the named cases."""
    wanted = {case.id for case in with_ids(cases, ids)}
    shares = enumerate(split(cases, machines), start=1)
    return [number for number, share in shares if wanted & {case.id for case in share}]
