"""Faults of files and what they are checked for."""

FAULTS = [
    ("order.py", "EXPLAINED = 0.3", "EXPLAINED = 0.99", "no opinion ever"),
    ("order.py", "if gate > up", "if gate < up", "opinion turned round"),
    ("order.py", "held.pop() if len(held) == 1", "held.pop() if held", "layers that disagree make an opinion"),
    ("names.py", "SHOWN = 3", "SHOWN = 1", "one name"),
    ("canary.py", "return all(torch.isfinite", "return any(torch.isfinite", "one infinite extreme passes"),
    (
        "canary.py",
        "if missing := sorted(set(probes) - set(tensors))",
        "if missing := []",
        "recorded tensors may be missing",
    ),
    (
        "canary.py",
        'OTHER: dict[Partition, Partition] = {"fl2va": "ref2va", "ref2va": "fl2va"}',
        'OTHER: dict[Partition, Partition] = {"fl2va": "fl2va", "ref2va": "ref2va"}',
        "exchanged partitions unnamed",
    ),
    ("canary.py", 'if "against" in held:', 'if held == ["against"] * 2:', "both must be against"),
    ("size_rules.py", "type(v) is int and v > 0", "type(v) is int", "negative sizes taken"),
    ("load.py", "place[entry.reorder(ours)] = ours", "place[ours] = entry.reorder(ours)", "inverse order"),
    ("load.py", "first = part.index * rows.shape[1]", "first = 0", "every rank the first columns"),
    ("load.py", "local = torch.full_like(place, -1)", "local = torch.full_like(place, 0)", "others' rows land on ours"),
]
