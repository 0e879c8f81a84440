"""Faults of judgements, records and reports."""

FAULTS = [
    ("frames.py", "sorted({0, count // 2, count - 1})", "sorted({0, count // 2})", "last frame not compared"),
    ("frames.py", "value, index = min((measure", "value, index = max((measure", "best frame decides"),
    ("frames.py", "return min(float(peak_signal", "return max(float(peak_signal", "always 100 dB"),
    ("frames.py", ".max())\n\n\ndef lag", ".mean())\n\n\ndef lag", "casts of one channel"),
    ("sound.py", "loudest = int(np.argmin(fits)), int(np.argmax(changes))", "loudest = 0, 0", "first channel alone"),
    ("sound.py", "sound = sound[..., max(lag, 0) :]", "sound = sound[..., max(-lag, 0) :]", "aligned the other way"),
    ("sound.py", "1.0 if all(silent) else 0.0", "1.0", "one silence agrees with sound"),
    ("soundcheck.py", "runs[runs >= CLIPPED_RUN].sum() / sound.size", "len(runs) / sound.size", "runs counted"),
    (
        "figures.py",
        "if self.value is None:\n            return False",
        "if self.value is None:\n            return True",
        "unmeasured",
    ),
    ("results.py", "kept = later if first.agrees else first", "kept = later", "a disagreement retried away"),
    ("results.py", "return bool(self.figures) and not self.problems", "return not self.problems", "no figures pass"),
    ("results.py", "return bool(self.results) and all", "return all", "an empty run passes"),
    ("select.py", "(-case.estimate_s, case.id)", "(case.estimate_s, case.id)", "shortest first"),
    ("select.py", "loads[lightest] += case.estimate_s", "loads[lightest] += 1", "split by number"),
    (
        "store.py",
        "root / platform / case_id, root / COMMON / case_id",
        "root / COMMON / case_id, root / platform / case_id",
        "common first",
    ),
    ("store.py", "old = runs[: max(0, len(runs) - keep)]", "old = runs[keep:]", "newest runs removed"),
    ("baselines.py", "known = stage in before and stage in after", "known = stage in after", "new stages pass"),
    ("meters.py", 'max(stats["peak_bytes"].values())', 'min(stats["peak_bytes"].values())', "smallest stage's peak"),
]
