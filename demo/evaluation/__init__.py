"""Judging clips of the demo checkpoint by the detectors: which prompts, who makes the clips, what counts as right."""
