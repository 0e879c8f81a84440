"""Faults of flags and files of the command line."""

FAULTS = [
    ("body.py", "SECONDS = 5.0", "SECONDS = 6.0", "another default length"),
    ("body.py", "if value is not None:", "if value:", "seed 0 of a flag ignored"),
    (
        "body.py",
        'if not body and merged["task"] != "ref2va":',
        'if merged["task"] != "ref2va":',
        "length added to files",
    ),
    ("body.py", 'return {**condition, "uri": str(folder / uri)}', "return condition", "paths by the working folder"),
    ("body.py", '"ref2va" if "reference" in roles', '"ref2va" if roles == {"reference"}', "hybrid taken for fl2va"),
    (
        "body.py",
        "if added:\n        merged",
        "if added and not body:\n        merged",
        "flags do not win over the file",
    ),
    ("flags.py", '"num_inference_steps": steps,', '"num_inference_steps": seed,', "steps from the seed"),
    (
        "generate.py",
        "for path in outputs[1:]:\n        result",
        "for path in outputs[2:]:\n        result",
        "second output lost",
    ),
    (
        "generate.py",
        "for path in outputs:\n        check_output",
        "for path in outputs[:1]:\n        check_output",
        "late refusal",
    ),
]
